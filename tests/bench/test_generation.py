"""Which ids an arm may generate: the best ones, and either of two that rounding cannot distinguish."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from triglot import impls
from triglot.bench.run import batches as batching
from triglot.bench.run.cases import Cell, Settings
from triglot.bench.run.sweep import Sweep
from triglot.bench.run.work import BenchedModel
from triglot.parity.generation import GenerationTruth
from triglot.parity.outputs import ForwardTruth
from triglot.parity.run import rounded_weights
from triglot.shared import inputs
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.errors import NotFiniteError
from triglot.shared.model.recipes import recipe

QUICK = Settings(seconds=0.05, rounds=2, processes=1, warm_up=0.1, uncounted=0.001, again=False)


def a_batch(config):
    return inputs.random_batch(config, [9, 4, 6], np.random.default_rng(0))


@pytest.fixture
def task(make_checkpoint):
    """Weights, a batch, the truth, and the ids that float64 generates. No target ends early."""
    weights = make_checkpoint("translation-tiny")
    batch = a_batch(weights.config)
    ids = impls.build("numpy", weights).prepare("generation", batch)()
    assert not (ids == weights.config.end_id).any()
    return weights, batch, GenerationTruth(weights, batch, "float32"), ids


def judged(expectation, ids):
    judgement = expectation.judge({"ids": ids})
    return judgement.verdict, judgement.name


def test_a_token_that_is_not_the_best_is_noticed_with_its_place(task):
    weights, _, expectation, ids = task
    assert expectation.judge({"ids": ids}).error == 0
    cut = expectation.judge({"ids": ids[:, 1:]})
    assert cut.verdict == "diverged"
    assert cut.reason == f"the outputs are ids {ids[:, 1:].shape}; expected ids {ids.shape} and nothing else"
    place = (1, ids.shape[1] - 1)
    for token in set(range(weights.config.target_vocabulary)) - {int(ids[place])}:
        assert judged(expectation, with_one(ids, place, token)) == ("diverged", f"ids[{place[0]}, {place[1]}]")
    # The tokens after a wrong one are no longer the best either, so only the row is certain.
    verdict, name = judged(expectation, with_one(ids, (1, 5), (ids[1, 5] + 1) % weights.config.pad_id))
    assert (verdict, name[:6]) == ("diverged", "ids[1,")


def test_either_of_two_tokens_that_score_alike_is_right(task):
    """Also if one is better by less than rounding may change, but not if it is better by more."""
    weights, batch, _, ids = task
    row = int(ids[:, -1].argmin())
    best = int(ids[row, -1])
    other = max(set(range(best + 1, weights.config.target_vocabulary)) - set(ids.ravel().tolist()))
    (head,) = weights.config.heads_on_top

    def twins(difference):
        tensors = {name: array.copy() for name, array in weights.tensors.items()}
        table, bias = tensors[f"heads.{head}.weight"], tensors[f"heads.{head}.bias"]
        table[:, other] = table[:, best]
        bias[other] = bias[best] - np.float32(difference)
        return GenerationTruth(Checkpoint(weights.config, tensors), batch, "float32")

    given = {"ids": with_one(ids, (row, -1), other)}
    alike = twins(0).judge(given)
    assert alike.verdict == "pass"
    assert alike.error is not None
    assert alike.budget is not None
    assert (
        alike.error < alike.budget / 1e6
    )  # not zero even in float64, because BLAS adds up the last columns in another order
    assert twins(alike.budget / 2).judge(given).verdict == "pass"
    assert twins(alike.budget * 2).judge(given).verdict == "diverged"


def test_a_pad_token_before_the_end_ends_nothing(task):
    """A model may generate one, as that of article 000 does. What follows is still judged."""
    weights, batch, _, _ = task
    (head,) = weights.config.heads_on_top
    tensors = {name: array.copy() for name, array in weights.tensors.items()}
    tensors[f"heads.{head}.bias"][weights.config.pad_id] += 100
    padded = Checkpoint(weights.config, tensors)
    ids = impls.build("numpy", padded).prepare("generation", batch)()
    assert (ids[:, 1:] == weights.config.pad_id).all()
    expectation = GenerationTruth(padded, batch, "float32")
    assert expectation.judge({"ids": ids}).verdict == "pass"
    assert judged(expectation, with_one(ids, (2, -1), 0)) == ("diverged", f"ids[2, {ids.shape[1] - 1}]")


def test_16_bits_may_generate_another_token_than_float64(framework, make_checkpoint):
    """Some of 64 targets have two tokens that bfloat16 cannot distinguish. Paddle has no bfloat16 on a CPU."""
    dtype = "float32" if framework == "paddle" else "bfloat16"
    weights = rounded_weights(make_checkpoint("translation-tiny", 3), dtype)
    batch = inputs.random_batch(weights.config, [9] * 64, np.random.default_rng(0))
    mode = "jit" if framework == "jax" else "eager"
    model: Any = impls.build(framework, weights, dtype=dtype, mode=mode)
    ids = model.to_numpy(model.prepare("generation", batch)())
    exact = impls.build("numpy", weights).prepare("generation", batch)()
    assert (ids != exact).any() == (dtype == "bfloat16")
    assert GenerationTruth(weights, batch, dtype).judge({"ids": ids}).verdict == "pass"


def test_a_wrong_generation_is_not_timed(make_checkpoint, fakes):
    """The row names the token."""
    checkpoint = make_checkpoint("translation-tiny")
    cell = Cell("m", "generation", "padded", "float32", "cpu", 2, 9, 1.0, 1)
    sweep = Sweep([BenchedModel("m", checkpoint)], [cell], ["fake-a"], QUICK, command=fakes)
    sweep.time_cells()
    (result,) = sweep.results
    assert (result.status, result.rounds) == ("failed", [])
    last = checkpoint.config.target_max_length - 1
    assert result.failure.startswith(f"ids[1, {last}] diverged: the error is ")


def test_a_target_that_ends_is_padded_from_there(task):
    """The end id may be like any other id, or the start id."""
    weights, batch, _, ids = task
    for start in (weights.config.start_id, int(ids[0, 4])):
        config = replace(weights.config, start_id=start, end_id=int(ids[0, 4]))
        model = impls.build("numpy", Checkpoint(config, weights.tensors))
        generated = model.prepare("generation", batch)()
        assert (generated[:, 1:] == config.end_id).any()
        expectation = GenerationTruth(Checkpoint(config, weights.tensors), batch, "float32")
        assert judged(expectation, generated)[0] == "pass"


def test_a_target_of_one_token_is_the_start(make_checkpoint):
    config = replace(recipe("translation-tiny"), target_max_length=1)
    batch = a_batch(config)
    expectation = GenerationTruth(make_checkpoint(config), batch, "float32")
    start = np.full((3, 1), config.start_id)
    assert judged(expectation, start)[0] == "pass"
    assert judged(expectation, start + 1) == ("diverged", "ids[0, 0]")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_token_banned_by_a_bias_does_not_widen_the_budget(dtype, task):
    weights, batch, _, _ = task
    (head,) = weights.config.heads_on_top
    tensors = {name: array.copy() for name, array in weights.tensors.items()}
    tensors[f"heads.{head}.bias"][weights.config.pad_id] = -1e9
    forbidding = rounded_weights(Checkpoint(weights.config, tensors), dtype)
    ids = impls.build("numpy", forbidding).prepare("generation", batch)()
    expectation = GenerationTruth(forbidding, batch, dtype)
    assert judged(expectation, ids)[0] == "pass"
    worst = with_one(ids, (1, -1), weights.config.pad_id)
    assert judged(expectation, worst)[0] == "diverged"
    scores = impls.build("numpy", forbidding).forward(batch.source, ids, batch.valid, ids >= 0)[1, -2]
    second = int(np.argsort(scores)[-weights.config.target_vocabulary // 2])  # of average rank
    assert judged(expectation, with_one(ids, (1, -1), second))[0] == "diverged"


def test_overflowing_scores_are_refused(make_checkpoint):
    """Otherwise the noise would be infinite, and so would the budget."""
    weights = make_checkpoint("translation-tiny")
    (head,) = weights.config.heads_on_top
    tensors = {**weights.tensors, f"heads.{head}.weight": np.full_like(weights.tensors[f"heads.{head}.weight"], 6e4)}
    large = rounded_weights(Checkpoint(weights.config, tensors), "float16")
    for make in (GenerationTruth, ForwardTruth):
        with pytest.raises(NotFiniteError, match=r"(is|are) not finite in float16, so nothing can be judged"):
            make(large, a_batch(weights.config), "float16")
        make(large, a_batch(weights.config), "float32")


def test_rows_to_judge_are_counted_by_their_generated_tokens(make_checkpoint):
    weights = make_checkpoint("translation-tiny")
    batch = inputs.random_batch(weights.config, [2] * 9, np.random.default_rng(0))
    longest = weights.config.target_max_length
    assert len(batching.first_rows(batch, 4 * longest, generated=longest).valid) == 4
    assert len(batching.first_rows(batch, 1, least=2).valid) == 2
    assert len(batching.first_rows(batch, 1).valid) == 1


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda ids, _: ids[:, :-1], "ids"),
        (lambda ids, _: ids[:2], "ids"),
        (lambda ids, config: with_one(ids, (2, 0), config.end_id), "ids[2, 0]"),
        (lambda ids, config: with_one(ids, (1, 3), config.target_vocabulary), "ids[1, 3]"),
        (lambda ids, _: with_one(ids, (1, 3), -1), "ids[1, 3]"),
        (lambda ids, config: with_one(ids, (0, 4), config.end_id), "ids[0, 5]"),
    ],
    ids=["short", "rows", "start", "above", "below", "after the end"],
)
def test_impossible_ids_are_noticed(change, name, task):
    weights, _, expectation, ids = task
    assert judged(expectation, change(ids, weights.config)) == ("diverged", name)
    assert expectation.judge({}).verdict == "diverged"
    assert expectation.judge({"ids": ids, "more": ids}).verdict == "diverged"


def with_one(ids, place, value):
    changed = ids.copy()
    changed[place] = value
    return changed
