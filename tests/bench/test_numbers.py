"""The numbers of the benchmark: intervals hold the truth, work is what PyTorch counts, batches are as requested."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from torch.utils.flop_counter import FlopCounterMode

from triglot import impls, models
from triglot.bench.report import statistics
from triglot.bench.run import batches as batching
from triglot.bench.run import flops
from triglot.bench.run.cases import Cell
from triglot.parity.outputs import ForwardTruth
from triglot.shared import inputs
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.errors import InputError
from triglot.shared.model.initializers import initialize
from triglot.shared.model.recipes import recipe
from triglot.shared.training.plan import Plan


def numbered(rounds):
    return dict(enumerate(rounds))


def rounds(generator, level, count, noise=0.03):
    """Return samples of two arms that take turns on a drifting machine: a slow wave, and noise in each round."""
    drift = 1 + 0.2 * np.sin(np.linspace(0, 3, count))
    moods, single = generator.lognormal(0, noise, (count, 1)), generator.lognormal(0, 0.02, (count, 5))
    return (level * drift[:, None] * moods * single).tolist()


@pytest.mark.parametrize(
    ("count", "processes", "width"), [(6, 1, 0.15), (12, 1, 0.15), (12, 4, 0.15), (48, 4, 0.08), (6, 3, 0.3)]
)
def test_the_interval_holds_the_ratio_as_often_as_promised(count, processes, width):
    """Of 500 runs of an arm against itself, 95% of the intervals, less four standard errors, hold 1."""
    generator = np.random.default_rng(0)
    runs = [
        statistics.paired_ratio(
            numbered(rounds(generator, 1, count)),
            numbered(rounds(generator, 1, count)),
            lambda number: number * processes // count,
        )
        for _ in range(500)
    ]
    inside = np.mean([run.low <= 1 <= run.high for run in runs])
    assert inside > 0.95 - 4 * (0.95 * 0.05 / 500) ** 0.5
    widths = np.mean([run.high - run.low for run in runs])
    assert widths < width, "an interval that holds everything says nothing"


def test_a_difference_of_a_tenth_is_seen():
    generator = np.random.default_rng(1)
    for _ in range(100):
        ours, theirs = (numbered(rounds(generator, level, 12, 0.01)) for level in (1.1, 1))
        assert statistics.paired_ratio(ours, theirs, lambda _: 0).low > 1.03


@pytest.mark.long
def test_processes_that_differ_for_their_whole_lives_widen_the_interval():
    """Each process is slow or fast by chance. Intervals that ignore the processes miss the truth most of the time."""
    generator = np.random.default_rng(4)
    count, processes = 48, 4

    def process_of_round(number):
        return number * processes // count

    inside = {"four": 0, "taken for one": 0}
    for _ in range(200):
        ours, theirs = (
            {
                number: [sample * mood[process_of_round(number)] for sample in samples]
                for number, samples in enumerate(rounds(generator, 1, count))
            }
            for mood in np.where(generator.random((2, processes)) < 0.4, 1.2, 1.0)
        )
        for name, function in (("four", process_of_round), ("taken for one", lambda _: 0)):
            ratio = statistics.paired_ratio(ours, theirs, function)
            inside[name] += ratio.low <= 1 <= ratio.high
    assert inside["four"] > 180
    assert inside["taken for one"] < 150


@pytest.mark.long
def test_more_processes_until_the_interval_is_narrow_do_not_break_its_promise():
    """Stopping early is likely if the first processes are alike by chance."""
    generator = np.random.default_rng(5)
    inside = []
    for scatter in (0.005, 0.02, 0.05):
        for _ in range(100):
            ours = {number: [float(generator.lognormal(0, scatter))] for number in range(30)}
            count, ratio = 5, statistics.Ratio(1.0, 0.0, float("inf"))
            while count <= 30 and not ratio.is_precise:
                shared = dict(list(ours.items())[:count])
                ratio = statistics.paired_ratio(shared, {number: [1.0] for number in shared}, lambda number: number)
                count += 1
            inside.append(ratio.low <= 1 <= ratio.high)
    assert np.mean(inside) > 0.95 - 4 * (0.95 * 0.05 / len(inside)) ** 0.5


def test_a_step_in_the_speed_of_the_machine_does_not_matter():
    """One case had its turn just before the step, the other just after it."""
    ours = {number: [1.0 if number < 6 else 1.5] for number in range(12)}
    theirs = {number: [1.0 if number < 5 else 1.5] for number in range(12)}
    ratio = statistics.paired_ratio(ours | {12: [1.0]}, theirs | {12: [1.0]}, lambda number: number // 12)
    assert ratio.median == pytest.approx(1)


def test_one_odd_call_does_not_decide_the_ratio_of_a_slow_arm():
    """Of each process, the slow arm has one round, and in one of these the baseline had an odd call."""
    baseline = {number: [1.5 if number == 5 else 1.0] for number in range(32)}
    ratio = statistics.paired_ratio({number: [8.0] for number in (5, 13, 21, 29)}, baseline, lambda number: number // 8)
    assert ratio.median == pytest.approx(8)


def test_single_samples_would_give_a_false_interval():
    """Rounds are resampled instead of samples, because the samples of a round are alike."""
    generator = np.random.default_rng(2)
    outside = 0
    for _ in range(100):
        ours, theirs = (np.array(rounds(generator, 1, 12)) for _ in range(2))
        drawn = generator.choice(np.log(ours.ravel()) - np.log(theirs.ravel()), (400, ours.size))
        low, high = np.percentile(np.median(drawn, axis=1), [2.5, 97.5])
        outside += not low <= 0 <= high
    assert outside > 15


def test_the_work_of_a_training_is_what_torch_counts():
    """Only what the loss reads counts, forward and backward. An encoder's loss does not read a head."""
    config = replace(recipe("bert-base-tiny"), heads_on_top=("pooler", "masked_lm"), tied_embeddings=True)
    cell = Cell("m", "forward+backward", "padded", "float32", "cpu", 3, 9, 1.0, 1)
    (batch,) = batching.batches_of_cell(cell, config, None, 0)
    model = impls.build("torch", Checkpoint(config, initialize(config)))
    with FlopCounterMode(display=False) as counter:
        model.begin_training(Plan())
        model.prepare("training", batch)()
    ours = flops.operations("forward+backward", config, batch)
    assert ours == flops.operations("training", config, batch)
    # Eager PyTorch still computes the forward pass of the heads.
    headless = replace(config, heads_on_top=(), tied_embeddings=False)
    heads = flops.forward_operations(config, batch) - flops.forward_operations(headless, batch)
    assert heads > 0
    assert counter.get_total_flops() == ours + heads


def test_the_least_memory_traffic_is_counted():
    config = replace(recipe("bert-base-tiny"), layers=1, heads_on_top=())
    (batch,) = batching.batches_of_cell(Cell("m", "forward", "padded", "float32", "cpu", 2, 5, 1.0, 1), config, None, 0)
    size, inner, tokens = config.hidden_size, config.feed_forward_size, 10
    attention = 4 * (size * size + size)
    weights = attention + 2 * size * inner + inner + size + 3 * 2 * size  # and three norms
    vectors = 3 * tokens * size  # of the table, into the layer, out of it
    assert flops.least_bytes("forward", config, batch, 4) == 4 * (weights + vectors)
    assert flops.least_bytes("forward+backward", config, batch, 4) == 3 * 4 * (weights + vectors)
    tables = (config.source_vocabulary + config.segments + config.position_offset + config.source_max_length) * size
    adam = 6 * (weights + tables)
    assert flops.least_bytes("training", config, batch, 4) == 4 * (3 * (weights + vectors) + adam)
    assert flops.least_bytes("forward", config, batch, 2) == 2 * (weights + vectors)


def test_separate_runs_are_compared_without_pairs():
    generator = np.random.default_rng(3)
    for processes in ([0] * 12, [0] * 9), ([0] * 4 + [1] * 4 + [2] * 4, [0] * 9), (list(range(12)), list(range(9))):
        same = statistics.unpaired_ratio(rounds(generator, 1, 12), rounds(generator, 1, 9), *processes)
        assert same.low < 1 < same.high
        assert statistics.unpaired_ratio(rounds(generator, 2, 12), rounds(generator, 1, 9), *processes).low > 1.3


def test_no_rounds_are_refused():
    with pytest.raises(ValueError, match="share no round"):
        statistics.paired_ratio({0: [1.0]}, {1: [1.0]}, lambda _: 0)
    with pytest.raises(ValueError, match="no rounds to compare"):
        statistics.unpaired_ratio([], [], [], [])


def test_an_interval_is_precise_by_its_width_alone():
    precise = {
        (1.0, 0.985, 1.015): True,
        (1.0, 0.97, 1.03): False,
        (1.06, 1.02, 1.10): False,  # wherever the interval lies
        (3.0, 2.7, 3.3): True,
        (1.0, 0.0, float("inf")): False,
    }
    assert {given: statistics.Ratio(*given).is_precise for given in precise} == precise


def test_one_round_gives_no_interval():
    assert statistics.paired_ratio({0: [2.0]}, {0: [1.0]}, lambda _: 0) == statistics.Ratio(2.0, 0.0, float("inf"))


def test_warm_up_ends_when_the_times_no_longer_fall():
    assert not statistics.is_steady([])
    assert not statistics.is_steady([[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]), "two that are alike may be chance"
    assert not statistics.is_steady([[1.0], [9.0, 5.0], [4.0, 3.0, 2.0]])
    assert statistics.is_steady([[9.0, 5.0], [9.0, 1.0, 1.0], [1.0, 1.04, 7.0]])


@pytest.mark.parametrize("name", ["bert-base-tiny", "dygraph-tiny", "minilm-tiny", "multihead-tiny"])
def test_work_is_what_pytorch_counts(name, make_checkpoint):
    config = recipe(name)
    if name == "bert-base-tiny":
        config = replace(config, heads_on_top=("pooler", "masked_lm"))
    batch: Any = inputs.random_batch(config, [7, 7, 7], np.random.default_rng(0))
    call = impls.build("torch", make_checkpoint(config)).prepare("forward", batch)
    with FlopCounterMode(display=False) as counter:
        call()
    assert flops.forward_operations(config, batch) == counter.get_total_flops()


def test_work_of_a_decoder_leaves_out_what_the_causal_mask_hides(make_checkpoint):
    config = recipe("translation-tiny")
    batch: Any = inputs.random_batch(config, [7, 7, 7], np.random.default_rng(0))
    call = impls.build("torch", make_checkpoint(config)).prepare("forward", batch)
    with FlopCounterMode(display=False) as counter:
        call()
    length = batch.target.shape[1]
    hidden = config.decoder_layers * 3 * 2 * config.heads * (config.key_size + config.value_size)
    assert flops.forward_operations(config, batch) == counter.get_total_flops() - hidden * (length * (length - 1) / 2)


def test_padding_is_not_work():
    config = recipe("bert-base-tiny")
    generator = np.random.default_rng(0)
    alone = sum(flops.forward_operations(config, inputs.random_batch(config, [n], generator)) for n in (9, 4))
    assert flops.forward_operations(config, inputs.random_batch(config, [9, 4], generator)) == pytest.approx(alone)


@pytest.mark.parametrize(
    ("rows", "longest", "fill"), [(8, 128, 1), (8, 128, 0.5), (3, 10, 0.7), (1, 5, 1), (16, 64, 0.1)]
)
def test_rows_have_the_requested_fill(rows, longest, fill):
    found = batching.row_lengths(rows, longest, fill, np.random.default_rng(0))
    assert found[0] == max(found) == longest
    assert min(found) >= 1
    assert sum(found) == rows * longest - round(rows * longest * (1 - fill))


def test_a_fill_that_leaves_too_few_tokens_is_refused():
    with pytest.raises(InputError, match=r"fill is 0\.1.*too small.*2 x 8 tokens"):
        batching.row_lengths(2, 8, 0.1, np.random.default_rng(0))


@pytest.mark.parametrize("name", ["bert-base-tiny", "translation-tiny"])
def test_sentences_come_as_they_are_or_sorted(name):
    config = recipe(name)
    lengths = {}
    for order in ("arrival", "sorted"):
        cell = Cell(name, "forward", order, "float32", "cpu", 4, 16, 1.0, 1)
        found = batching.batches_of_cell(cell, config, None, 0)
        assert {len(batch.valid) for batch in found} == {4}
        lengths[order] = [int(n) for batch in found for n in batch.valid.sum(axis=1)]
    assert lengths["arrival"] != lengths["sorted"] == sorted(lengths["arrival"], reverse=True)
    assert len(set(lengths["sorted"])) > 4


@pytest.mark.parametrize(("batch", "shared"), [(8, False), (64, False), (128, True)])
def test_new_shapes_come_from_other_sentences(batch, shared):
    """No sentence is in both calls, unless the manual has too few sentences."""
    tokenizer = models.tokenizer_file(models.sentence_encoder("minilm"))
    cell = Cell("minilm", "forward", "arrival", "float32", "cpu", batch, 128, 1.0, 1)
    makers = batching.batches_of_cell, batching.further_batches
    calls: Any = [maker(cell, recipe("minilm"), tokenizer, 0) for maker in makers]
    timed, further = (
        [tuple(row[real]) for part in parts for row, real in zip(part.source, part.valid, strict=True)]
        for parts in calls
    )
    assert len(timed) == len(further) == batching.SENTENCE_BATCHES * batch
    assert bool(set(timed) & set(further)) == shared


def test_a_wrong_output_is_noticed(make_checkpoint):
    """Test the guard: an output that is off by ten times the budget, is missing, or has another shape."""
    checkpoint = make_checkpoint("bert-base-tiny")
    batch: Any = inputs.random_batch(checkpoint.config, [5, 3], np.random.default_rng(0))
    expectation = ForwardTruth(checkpoint, batch, "float32")
    model = impls.build("numpy", checkpoint)
    given = batch.source, batch.valid, batch.segment_ids
    right = {"output": model.encode(*given), **model.heads(*given)}
    assert expectation.judge(right).verdict == "pass"
    allowed = expectation.judge(right).budget
    assert allowed is not None
    off = right["output"].copy()
    off[0, 0, 0] += 10 * allowed
    hidden = right["output"].copy()
    hidden[1, 4] = 7  # padding does not count
    assert expectation.judge({**right, "output": off}).verdict == "diverged"
    assert expectation.judge({**right, "output": hidden}).verdict == "pass"
    shape = right["output"].shape
    assert (
        expectation.judge({**right, "output": off[:, :4]}).reason
        == f"the shape is {off[:, :4].shape}, expected {shape}"
    )
    assert expectation.judge({**right, "output": off * np.nan}).verdict == "diverged"
    assert expectation.judge({"logits": off}).reason == "the reference has no such value"
    assert expectation.judge({}).verdict == "diverged"
