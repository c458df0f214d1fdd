"""The packed encoder on a CPU: real tokens without padding, in mode ``compiled``, and for the loss in mode ``jit``."""

import importlib
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import triglot
from triglot.impls import PACKAGES
from triglot.impls.paddlepaddle import packed as paddle_packed
from triglot.impls.pytorch.packed import with_spares
from triglot.parity import gradients as judged
from triglot.parity.output_names import name_gradients
from triglot.parity.outputs import ForwardTruth
from triglot.shared import inputs
from triglot.shared.inputs.buckets import SMALLEST, bucket, window_lengths, windows_of
from triglot.shared.inputs.packing import MOST_ROWS, pack
from triglot.shared.model.config import DECODER_HEADS, Head
from triglot.shared.model.recipes import recipe
from triglot.shared.training.dropout_masks import draw_dropout_masks
from triglot.shared.training.plan import Plan

CONFIG = replace(recipe("bert-base-tiny"), heads_on_top=("pooler", "masked_lm"), tied_embeddings=True)


@pytest.mark.parametrize("limits", [{}, {"most_rows": 40, "most_groups": 2}], ids=["PyTorch", "Paddle"])
@given(st.lists(st.lists(st.booleans(), min_size=7, max_size=7).filter(any), min_size=1, max_size=40))
def test_every_real_token_is_packed_once_into_a_group(limits, rows):
    valid = np.array(rows)
    for skip_padding in (False, True):
        packing = pack(valid, skip_padding=skip_padding)
        assert sorted(packing.tokens) == np.flatnonzero(valid).tolist()
        of_row = packing.tokens // 7
        places = (valid.cumsum(axis=1) - 1 if skip_padding else np.tile(np.arange(7), (len(rows), 1))).ravel()
        assert packing.positions.tolist() == places[packing.tokens].tolist()
        end = 0
        for group in packing.groups(**limits):
            assert group.start == end
            end = group.stop
            own = of_row[group.start : group.stop]
            lengths = [np.count_nonzero(own == row) for row in dict.fromkeys(own)]
            assert lengths == sorted(lengths, reverse=True)
            assert (len(lengths), lengths[0]) == (group.rows, group.length)
            if group.valid is None or group.places is None:
                assert set(lengths) == {group.length}
                continue
            assert group.valid.sum(axis=1).tolist() == lengths
            # Padding shows a token of its own row.
            assert (own[group.places].reshape(group.rows, -1) == [[row] for row in dict.fromkeys(own)]).all()
            assert group.places[group.valid.ravel()].tolist() == list(range(len(own)))
        assert end == len(packing.tokens)


@pytest.mark.parametrize(
    ("lengths", "rows"),
    [
        ([5] * (MOST_ROWS + 3), [MOST_ROWS + 3]),
        (range(2 * MOST_ROWS + 9, MOST_ROWS, -1), [MOST_ROWS, 9]),
        ([12, 6, 5, 2], [2, 1, 1]),
        ([7] + [6] * (MOST_ROWS + 4) + [5], [MOST_ROWS, 6]),
    ],
    ids=["equal", "similar", "different", "equal rows in two groups"],
)
def test_rows_of_similar_length_are_one_group(lengths, rows):
    longest = max(lengths)
    packing = pack(np.arange(longest) < np.array(lengths)[:, None], skip_padding=False)
    assert [group.rows for group in packing.groups()] == rows


def test_the_last_of_a_limited_number_of_groups_has_the_rest():
    packing = pack(np.arange(40) < np.array([[40], [20], [9], [4], [2], [1]]), skip_padding=False)
    assert [group.rows for group in packing.groups(most_rows=6, most_groups=2)] == [2, 4]


@given(st.integers(1, 100_000))
def test_buckets_are_few_and_little_larger(number):
    size = bucket(number)
    assert number <= size < max(number * 9 / 8, number + SMALLEST)
    assert size % SMALLEST == 0
    assert bucket(size) == size
    assert len({bucket(each) for each in range(number + 1, 2 * number + 1)}) <= 9


@given(st.lists(st.integers(1, 70), min_size=1, max_size=11), st.sampled_from([70, 512]))
def test_every_row_fits_into_its_window(lengths, longest):
    lengths = np.array(sorted(lengths, reverse=True))
    size = bucket(int(lengths.sum()))
    sizes, (starts, padded, bounds) = window_lengths(size, longest), windows_of(lengths, size, longest)
    assert starts[: len(lengths)].tolist() == [0, *lengths.cumsum()[:-1]]
    assert padded.tolist() == [*lengths, *[0] * (size - len(lengths))]
    assert (bounds[0], bounds[-1]) == (0, len(lengths))
    for window, first, end in zip(sizes, bounds[:-1], bounds[1:], strict=True):
        assert (lengths[first:end] <= window).all()
        assert window <= size
        assert (2 * lengths[first:end] >= window).all() or window == SMALLEST


VECTORS = replace(
    CONFIG,
    heads_on_top=(),
    tied_embeddings=False,
    source_vocabulary=0,
    segments=0,
    positions="none",
    embedding_process="",
    pad_id=None,
)
ALL_HEADS = {
    "heads_on_top": tuple(name for name in get_args(Head) if name not in DECODER_HEADS),
    "tied_embeddings": False,
    "classes": 3,
    "sentence_pooling": "max",
}
SHAPES = [(1, 5), (8, 13), (3, 1), (12, 9), (8, 13)]


@cache
def compiled(framework, config):
    return triglot.build(framework, triglot.initialize(config), mode="compiled")


@pytest.fixture
def model(framework):
    return compiled(framework, CONFIG)


MUCH_PADDING, LITTLE_PADDING = [13, 9, 9, 9, 9, 9, 2, 1], [13, 12, 10, 13, 13, 12, 11, 9]


def ragged(seed, lengths=MUCH_PADDING):
    """Ids and rows of these lengths: some alone, some equal, two with padding at the left or inside."""
    generator = np.random.default_rng(seed)
    valid = np.arange(13) < np.array(lengths)[:, None]
    valid[1] = np.roll(valid[1], 3)
    valid[2, [4, 10]] = valid[2, [10, 4]]
    return generator.integers(0, CONFIG.source_vocabulary, valid.shape, np.int32), valid


both_paddings = pytest.mark.parametrize("lengths", [MUCH_PADDING, LITTLE_PADDING], ids=["much", "little"])


def encode(model, **arrays):
    """Encode a batch that the facade would refuse, because it has NaN."""
    with model.backend.computing("forward"):
        return model.to_numpy(model.backend.encode({name: model.backend.to_tensor(arrays[name]) for name in arrays}))


@both_paddings
@pytest.mark.parametrize("row", range(8))
def test_a_row_never_sees_its_neighbours(row, lengths, model):
    """Not a bit of its result changes with the tokens of the others, as long as these keep their lengths."""
    ids, valid = ragged(0, lengths)
    others, _ = ragged(1)
    others[row] = ids[row]
    assert np.array_equal(model.encode(ids, valid)[row], model.encode(others, valid)[row])
    first, second = model.heads(ids, valid), model.heads(others, valid)
    assert all(np.array_equal(first[name][row], second[name][row]) for name in first)


def test_pytorch_adds_spare_tokens_to_large_batches():
    """Then only a few sizes of memory occur, again and again."""
    sizes = {len(with_spares(np.zeros(number))) for number in range(2049, 4097)}
    assert len(sizes) == 32


@pytest.mark.parametrize("lengths", [[37] * 56 + [29], [32] * 8], ids=["large", "without padding"])
def test_a_batch_that_takes_another_path_is_right(lengths, model):
    """A large batch gets spare tokens in PyTorch. A small one without padding is not packed in PyTorch and JAX."""
    batch = inputs.random_batch(CONFIG, lengths, np.random.default_rng(0))
    assert isinstance(batch, inputs.EncoderBatch)
    assert batch.valid.sum() == sum(lengths)
    arrays = batch.source, batch.valid, batch.segment_ids
    results = {"output": model.encode(*arrays), **model.heads(*arrays)}
    assert ForwardTruth(triglot.initialize(CONFIG), batch, "float32").judge(results).verdict == "pass"


@both_paddings
@pytest.mark.parametrize("skip_padding", [False, True])
def test_a_batch_with_padding_is_right(skip_padding, lengths, framework):
    """And zero at padding tokens. Paddle does not pack a batch with little padding."""
    config = replace(CONFIG, positions_skip_padding=skip_padding)
    checkpoint, model = triglot.initialize(config), compiled(framework, config)
    batch = inputs.encoder_batch(config, *ragged(0, lengths))
    results = {"output": model.encode(batch.source, batch.valid), **model.heads(batch.source, batch.valid)}
    assert ForwardTruth(checkpoint, batch, "float32").judge(results).verdict == "pass"
    assert not results["output"][~batch.valid].any()


@both_paddings
@pytest.mark.parametrize("row", [0, 3])  # the longest of its group, whose tokens come first, and another one
def test_nothing_of_a_neighbour_spreads(row, lengths, framework):
    """Not even NaN, which a product with a weight of zero would keep. Nor does anything of the padding."""
    model, (_, valid) = compiled(framework, VECTORS), ragged(0, lengths)
    vectors = np.random.default_rng(0).normal(size=(*valid.shape, VECTORS.hidden_size)).astype(np.float32)
    clean = encode(model, source=vectors, valid=valid)
    vectors[~valid] = 3e38
    assert np.array_equal(encode(model, source=vectors, valid=valid), clean)
    vectors[row] = np.nan
    spoiled = encode(model, source=vectors, valid=valid)
    assert np.isnan(spoiled[row][valid[row]]).all()
    others = np.arange(8) != row
    assert np.array_equal(spoiled[others], clean[others])


def test_results_belong_to_the_caller(model):
    """Later calls, of other shapes and of the same one, do not overwrite the tensors that a call returned."""
    generator = np.random.default_rng(0)
    results = []
    for rows, length in SHAPES:
        valid = np.arange(length) < generator.integers(1, length + 1, (rows, 1))
        ids = generator.integers(0, CONFIG.source_vocabulary, valid.shape)
        output, heads = model.prepare("forward", inputs.encoder_batch(CONFIG, ids, valid))()
        results += [(tensor, model.to_numpy(tensor)) for tensor in (output, *heads.values())]
    for tensor, array in results:
        assert np.array_equal(model.to_numpy(tensor), array)


@pytest.mark.parametrize(("hidden_size", "share"), [(16, 0.2), (384, 1 / 6), (768, 1 / 12)])
def test_paddle_does_not_pack_a_batch_with_little_padding(hidden_size, share):
    """The wider the model, the less padding is worth the packing."""
    config = replace(CONFIG, hidden_size=hidden_size, heads=4)
    padding = [round(240 * share) - 1, round(240 * share) + 1]
    assert [paddle_packed.gains_nothing(config, np.arange(240)[None] >= number) for number in padding] == [True, False]


def test_paddle_builds_an_engine_for_packed_tokens_and_one_for_padded_ones(monkeypatch):
    """They serve all shapes."""
    from paddle import inference

    built = []
    create = inference.create_predictor
    monkeypatch.setattr(inference, "create_predictor", lambda config: built.append(config) or create(config))
    model = triglot.build("paddle", triglot.initialize(CONFIG), mode="compiled")
    much, little = (ragged(0, lengths)[1] for lengths in (MUCH_PADDING, LITTLE_PADDING))
    batches = [np.ones((1, 5), bool), much, np.ones((3, 1), bool), little, much[1:, :9], much[[0, 7]]]
    for valid in batches:
        model.encode(np.ones(valid.shape, np.int64), valid)
    assert [paddle_packed.gains_nothing(CONFIG, valid) for valid in batches] == [True, False, True, True, False, False]
    assert len(built) == 2


@pytest.mark.usefixtures("without_cpp")
@pytest.mark.parametrize(
    "fields",
    [{"activation": "relu", "positions_skip_padding": True, "tasks": 3}, {"activation": "gelu_tanh", **ALL_HEADS}],
    ids=["relu, positions of real tokens, tasks", "gelu_tanh, all heads"],
)
def test_variants_of_an_encoder_pass(fields, framework, make_checkpoint, check_small):
    checkpoint = make_checkpoint(replace(CONFIG, **fields))
    report = check_small(checkpoint, framework, mode="compiled", checks=["forward", "invariants"])
    assert report.verdict == "pass", report.divergences


@pytest.mark.usefixtures("without_cpp")
def test_an_encoder_of_vectors_passes(framework, make_checkpoint, check_small):
    report = check_small(make_checkpoint(VECTORS), framework, mode="compiled", checks=["forward"])
    assert report.verdict == "pass", report.divergences


def test_threads_that_share_a_model_get_their_own_results(model):
    batches = [ragged(seed) for seed in range(2)]
    expected = [model.encode(*batch) for batch in batches]

    def differing(number):
        return sum(not np.array_equal(model.encode(*batches[number]), expected[number]) for _ in range(100))

    with ThreadPoolExecutor(2) as pool:
        assert [*pool.map(differing, range(2))] == [0, 0]


@both_paddings
def test_threads_may_make_the_first_calls(lengths, framework):
    """While a framework compiles in one thread, another one begins."""
    model, batch = triglot.build(framework, triglot.initialize(CONFIG), mode="compiled"), ragged(0, lengths)
    with ThreadPoolExecutor(4) as pool:
        encoded = [pool.submit(model.encode, *batch) for _ in range(2)]
        scored = [pool.submit(model.heads, *batch) for _ in range(2)]
    expected = {"output": model.encode(*batch), **model.heads(*batch)}
    for output, heads in zip(encoded, scored, strict=True):
        results = {"output": output.result(), **heads.result()}
        assert all(np.array_equal(results[name], expected[name]) for name in expected)


def test_pytorch_needs_no_compiler(make_checkpoint, monkeypatch):
    monkeypatch.setenv("CXX", "no-compiler")
    model = triglot.build("torch", make_checkpoint(CONFIG), mode="compiled")
    assert np.isfinite(model.encode(*ragged(0))).all()


def test_pytorch_without_onednn_uses_its_compiler(make_checkpoint, monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    monkeypatch.setenv("CXX", "no-compiler")
    with pytest.raises(triglot.FrameworkError, match=r"needs a C\+\+ compiler"):
        triglot.build("torch", make_checkpoint(CONFIG), mode="compiled")


def test_an_older_pytorch_is_refused_where_it_lacks_an_option(make_checkpoint, monkeypatch):
    """Version 2.11, which comes with some GPU machines, has no ``isolate_recompiles``."""

    def compile_of_2_11(model, *, fullgraph=False, dynamic=None, backend="inductor", mode=None, options=None):
        return model

    monkeypatch.setattr(torch, "compile", compile_of_2_11)
    with pytest.raises(triglot.FrameworkError, match=r"lacks an option that mode 'jit' needs; install torch==2\.13\.0"):
        triglot.build("torch", make_checkpoint(CONFIG), mode="jit")


@pytest.mark.parametrize("first", ["triglot.impls.paddlepaddle", "triglot, paddle, triglot.impls.paddlepaddle"])
@pytest.mark.parametrize("chosen", [None, "1"])
def test_paddle_leaves_the_threads_of_others_alone(chosen, first):
    """Its import sets OMP_NUM_THREADS to 1, if it is unset."""
    code = f"import os, {first}; print(os.environ.get('OMP_NUM_THREADS'))"
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    environment |= {"OMP_NUM_THREADS": chosen} if chosen else {}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == str(chosen)


def test_a_number_of_threads_that_was_set_before_paddle_is_kept():
    code = "import os, triglot; os.environ['OMP_NUM_THREADS'] = '4'; import paddle, triglot.impls.paddlepaddle"
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    command = [sys.executable, "-c", f"{code}; print(os.environ.get('OMP_NUM_THREADS'))"]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "4"


def test_jax_compiles_nothing_for_a_new_batch_of_similar_size(make_checkpoint):
    """One program serves all batches of a bucket, whatever the lengths of their rows are."""
    from jax import monitoring

    model: Any = triglot.build("jax", make_checkpoint(CONFIG), mode="compiled")
    events = []

    def listen(event, *_, **__):
        events.append(event)

    monitoring.register_event_duration_secs_listener(listen)
    try:
        model.heads(*ragged(0))
        assert "/jax/core/compile/backend_compile_duration" in events
        events.clear()
        valid = np.arange(11) < np.array([11, 11, 11, 8, 7, 7, 4])[:, None]
        assert bucket(int(valid.sum())) == bucket(int(ragged(0)[1].sum()))
        model.heads(ragged(1)[0][:7, :11], valid)
        assert events == []
    finally:
        monitoring.unregister_event_duration_listener(listen)


@pytest.mark.parametrize(("length", "is_packed"), [(16, False), (17, True)], ids=str)
def test_jax_packs_a_batch_without_padding_only_if_its_shape_is_rare(length, is_packed, make_checkpoint, monkeypatch):
    model: Any = triglot.build("jax", make_checkpoint(CONFIG), mode="compiled")
    sizes = []

    def count(valid, **options):
        sizes.append(valid.shape)
        return pack(valid, **options)

    monkeypatch.setattr("triglot.impls.flax_nnx.packed.pack", count)
    model.encode(np.ones((2, length), np.int64))
    assert bool(sizes) == is_packed


@pytest.mark.usefixtures("without_cpp")
@pytest.mark.parametrize("dropped", [False, True])
def test_training_packs_tokens_unless_there_are_dropout_masks(dropped, framework, make_checkpoint, monkeypatch):
    """Dropout masks have the shape of the padded batch."""
    checkpoint, packings = make_checkpoint("bert-base-tiny"), []
    module = importlib.import_module(f"triglot.impls.{PACKAGES[framework]}.packed")
    monkeypatch.setattr(module, "pack", lambda *a, **kw: packings.append(pack(*a, **kw)) or packings[-1])
    model, generator = triglot.build(framework, checkpoint, mode="jit"), np.random.default_rng(0)
    batch = inputs.random_batch(model.config, [7, 3, 1, 5], generator)
    batch = inputs.taught(model.config, batch, generator.standard_normal((4, 7, model.config.hidden_size)))
    masks = draw_dropout_masks(model.config, batch, generator) if dropped else None
    model.loss_and_gradients(batch, masks)
    model.begin_training(Plan())
    model.training_step(batch, masks)
    assert [len(packing.tokens) for packing in packings] == ([] if dropped else [16, 16])


def test_jax_compiles_nothing_for_gradients_of_a_similar_batch(make_checkpoint):
    """All batches fall into one bucket, but each needs a different number of windows of each length."""
    from triglot.impls.flax_nnx import training

    model, generator = triglot.build("jax", make_checkpoint("bert-base-tiny"), mode="jit"), np.random.default_rng(0)
    derive: Any = training._derive
    compiled = []
    for lengths in ([24, 20, 3, 1], [17, 17, 10, 1, 1], [33, 9, 5]):
        batch = inputs.random_batch(model.config, lengths, generator)
        vectors = generator.standard_normal((*batch.valid.shape, model.config.hidden_size))
        model.loss_and_gradients(inputs.taught(model.config, batch, vectors))
        compiled.append(derive._cache_size())
    assert 0 < compiled[0] == compiled[1] == compiled[2]


WITH_SPARES = [37, 35] * 30  # 2,160 tokens


@pytest.mark.parametrize(
    ("config", "lengths"),
    [
        pytest.param(CONFIG, None, id="tokens"),
        pytest.param(CONFIG, WITH_SPARES, id="spare tokens"),
        pytest.param(VECTORS, None, id="vectors"),
        pytest.param(
            replace(VECTORS, pre_process="n", post_process="da", norm="scalar_layer_norm", output_bias=False),
            None,
            id="a norm that sees tokens without a context",
        ),
    ],
)
def test_gradients_of_a_ragged_batch_are_right(config, lengths, framework):
    """Compare with PyTorch's float64 gradients. Rows form several groups and windows; some have holes."""
    checkpoint, generator = triglot.initialize(config), np.random.default_rng(0)
    batch: Any = inputs.random_batch(config, lengths or [13, 9, 9, 9, 9, 9, 2, 1, 37], generator)
    if lengths is None:
        valid = batch.valid.copy()
        valid[1], valid[2, [4, 10]] = np.roll(valid[1], 3), valid[2, [10, 4]]
        batch = replace(batch, valid=valid)
    batch = inputs.taught(config, batch, generator.standard_normal((*batch.valid.shape, config.hidden_size)))

    def derive(weights, inputs, masks, dtype):
        return triglot.build("torch", weights, dtype=dtype).loss_and_gradients(inputs, masks)

    truth = judged.gradient_truth(checkpoint, batch, derive)
    values = name_gradients(*triglot.build(framework, checkpoint, mode="jit").loss_and_gradients(batch))
    for name, value in truth.values.items():
        assert np.abs(values[name] - value).max() <= truth.budget(name, "float32"), name
