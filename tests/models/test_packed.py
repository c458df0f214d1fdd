"""The packed encoder of mode ``compiled`` on a CPU, which computes real tokens without padding."""

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache, partial
from typing import Any, get_args

import numpy as np
import paddle
import pytest
import torch
from tiny_configs import BERT_WITH_HEADS, VECTORS
from torch.nn import functional

import triglot
from triglot.impls.flax_nnx import packed as jax_packed
from triglot.impls.paddlepaddle import packed as paddle_packed
from triglot.impls.pytorch import packed as torch_packed
from triglot.impls.pytorch.packed import PackedLinear, with_spares
from triglot.parity.outputs import ForwardTruth
from triglot.shared import inputs
from triglot.shared.inputs.buckets import bucket
from triglot.shared.inputs.packing import pack
from triglot.shared.model.config import DECODER_HEADS, Head

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
    return compiled(framework, BERT_WITH_HEADS)


MUCH_PADDING, LITTLE_PADDING = [13, 9, 9, 9, 9, 9, 2, 1], [13, 12, 10, 13, 13, 12, 11, 9]


def ragged(seed, lengths=MUCH_PADDING):
    """Ids and rows of these lengths: some alone, some equal, two with padding at the left or inside."""
    generator = np.random.default_rng(seed)
    valid = np.arange(13) < np.array(lengths)[:, None]
    valid[1] = np.roll(valid[1], 3)
    valid[2, [4, 10]] = valid[2, [10, 4]]
    return generator.integers(0, BERT_WITH_HEADS.source_vocabulary, valid.shape, np.int32), valid


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


def test_pytorch_adds_few_spare_tokens_and_computes_few_sizes():
    sizes = {number: len(with_spares(torch.zeros(number, 2))) for number in range(1, 4097)}
    assert all(number <= size < max(number * 33 / 32, number + 8) for number, size in sizes.items())
    assert len(set(sizes.values())) == 32 * 5  # 32 up to 256 tokens, and 32 between each power of two and the next


@pytest.mark.parametrize("lengths", [[31] * 7, MUCH_PADDING], ids=["without padding", "much padding"])
def test_pytorch_computes_only_sizes_that_recur(lengths, monkeypatch):
    """In all linear layers that compute tokens. The pooler computes rows."""
    model = compiled("torch", BERT_WITH_HEADS)
    batch = inputs.random_batch(BERT_WITH_HEADS, lengths, np.random.default_rng(0))
    assert isinstance(batch, inputs.EncoderBatch)
    numbers = []
    forward = PackedLinear.forward
    monkeypatch.setattr(PackedLinear, "forward", lambda self, x: numbers.append(len(x)) or forward(self, x))
    model.heads(batch.source, batch.valid, batch.segment_ids)
    linears = 4 * BERT_WITH_HEADS.layers + 2  # query, key and value are one; two are of the masked_lm head
    assert sorted(numbers) == [len(lengths)] + [len(with_spares(torch.zeros(sum(lengths))))] * linears


@pytest.mark.parametrize("lengths", [[37] * 56 + [29], [32] * 8, [31] * 7], ids=["large", "without padding", "odd"])
def test_a_batch_that_takes_another_path_is_right(lengths, model):
    """PyTorch packs only the first batch, and adds spare tokens to the first and the last. JAX packs the same two."""
    batch = inputs.random_batch(BERT_WITH_HEADS, lengths, np.random.default_rng(0))
    assert isinstance(batch, inputs.EncoderBatch)
    assert batch.valid.sum() == sum(lengths)
    arrays = batch.source, batch.valid, batch.segment_ids
    results = {"output": model.encode(*arrays), **model.heads(*arrays)}
    assert ForwardTruth(triglot.initialize(BERT_WITH_HEADS), batch, "float32").judge(results).verdict == "pass"


@both_paddings
@pytest.mark.parametrize("skip_padding", [False, True])
def test_a_batch_with_padding_is_right(skip_padding, lengths, framework):
    """And zero at padding tokens. Paddle does not pack a batch with little padding."""
    config = replace(BERT_WITH_HEADS, positions_skip_padding=skip_padding)
    checkpoint, model = triglot.initialize(config), compiled(framework, config)
    batch = inputs.encoder_batch(config, *ragged(0, lengths))
    results = {"output": model.encode(batch.source, batch.valid), **model.heads(batch.source, batch.valid)}
    assert ForwardTruth(checkpoint, batch, "float32").judge(results).verdict == "pass"
    assert not results["output"][~batch.valid].any()


@both_paddings
# The longest of its group, whose tokens come first; another one; and the last one, whose last token is repeated.
@pytest.mark.parametrize("row", [0, 3, 7])
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
        ids = generator.integers(0, BERT_WITH_HEADS.source_vocabulary, valid.shape)
        output, heads = model.prepare("forward", inputs.encoder_batch(BERT_WITH_HEADS, ids, valid))()
        results += [(tensor, model.to_numpy(tensor)) for tensor in (output, *heads.values())]
    for tensor, array in results:
        assert np.array_equal(model.to_numpy(tensor), array)


@pytest.mark.parametrize(("hidden_size", "share"), [(16, 0.2), (384, 1 / 6), (768, 1 / 12)])
def test_paddle_does_not_pack_a_batch_with_little_padding(hidden_size, share):
    """The wider the model, the less padding is worth the packing."""
    config = replace(BERT_WITH_HEADS, hidden_size=hidden_size, heads=4)
    padding = [round(240 * share) - 1, round(240 * share) + 1]
    assert [paddle_packed.has_little_padding(config, np.arange(240)[None] >= number) for number in padding] == [
        True,
        False,
    ]


def test_paddle_builds_an_engine_for_packed_tokens_and_one_for_padded_ones(monkeypatch):
    """They serve all shapes."""
    from paddle import inference

    built = []
    create = inference.create_predictor
    monkeypatch.setattr(inference, "create_predictor", lambda config: built.append(config) or create(config))
    model = triglot.build("paddle", triglot.initialize(BERT_WITH_HEADS), mode="compiled")
    much, little = (ragged(0, lengths)[1] for lengths in (MUCH_PADDING, LITTLE_PADDING))
    batches = [np.ones((1, 5), bool), much, np.ones((3, 1), bool), little, much[1:, :9], much[[0, 7]]]
    for valid in batches:
        model.encode(np.ones(valid.shape, np.int64), valid)
    padded = [paddle_packed.has_little_padding(BERT_WITH_HEADS, valid) for valid in batches]
    assert padded == [True, False, True, True, False, False]
    assert len(built) == 2


def test_paddle_keeps_no_copy_of_the_weights_beside_the_engine(monkeypatch):
    """What was traced is freed."""
    traced = []
    save = paddle.jit.save
    monkeypatch.setattr(paddle.jit, "save", lambda layer, path: traced.append(weakref.ref(layer)) or save(layer, path))
    model = triglot.build("paddle", triglot.initialize(BERT_WITH_HEADS), mode="compiled")
    model.encode(np.ones((1, 5), np.int64))
    gc.collect()
    assert [layer() for layer in traced] == [None]


@pytest.mark.long(framework="paddle")
@pytest.mark.long(framework="jax")
def test_a_variant_of_an_encoder_passes(framework, make_checkpoint, check_small):
    fields = {"activation": "gelu_tanh", "positions_skip_padding": True, "tasks": 3, **ALL_HEADS}
    checkpoint = make_checkpoint(replace(BERT_WITH_HEADS, layers=1, **fields))
    report = check_small(checkpoint, framework, mode="compiled", checks=["forward", "invariants"])
    assert report.verdict == "pass", report.divergences


@pytest.mark.parametrize("many", [10**9, 1])
@pytest.mark.parametrize(("instructions", "is_fused"), [("AVX2", False), ("AVX512", True)])
def test_pytorch_uses_onednn_only_where_it_is_fast(
    instructions, is_fused, many, monkeypatch, make_checkpoint, check_small
):
    """With AVX2 but not AVX-512, PyTorch computes a GELU itself, and MKL multiplies many tokens."""
    linear, multiplied = functional.linear, []
    monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: instructions)
    monkeypatch.setattr("torch.backends.mkl.is_available", lambda: True)
    monkeypatch.setattr(torch_packed, "MANY", many)
    monkeypatch.setattr(functional, "linear", lambda x, *given: multiplied.append(len(x)) or linear(x, *given))
    layers = [PackedLinear(torch.ones(8, 8), None, activation) for activation in ("gelu", "gelu_tanh", "relu")]
    assert [layer.is_fused for layer in layers] == [is_fused, is_fused, True]
    x = torch.arange(-8.0, 8.0).view(2, 8) / 8
    activations = functional.gelu, partial(functional.gelu, approximate="tanh"), torch.relu
    for layer, activation in zip(layers, activations, strict=True):
        # The sums are exact. Two kernels of a GELU may differ by a few roundings.
        torch.testing.assert_close(layer(x), activation(linear(x, torch.ones(8, 8))), rtol=2.0**-20, atol=2.0**-20)
    assert multiplied == ([2, 2, 2] if instructions == "AVX2" and many == 1 else [])
    report = check_small(make_checkpoint(BERT_WITH_HEADS), "torch", mode="compiled", checks=["forward"])
    assert report.verdict == "pass", report.divergences


def test_a_row_never_sees_its_neighbours_in_mkl(monkeypatch, make_checkpoint):
    monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: "AVX2")
    monkeypatch.setattr(torch_packed, "MANY", 1)
    model = triglot.build("torch", make_checkpoint(BERT_WITH_HEADS), mode="compiled")
    (ids, valid), (others, _) = ragged(0), ragged(1)
    others[3] = ids[3]
    assert np.array_equal(model.encode(ids, valid)[3], model.encode(others, valid)[3])


def test_jax_traces_the_attention_once_for_all_layers(monkeypatch):
    traced, for_each_row = [], jax_packed.for_each_row
    monkeypatch.setattr(jax_packed, "for_each_row", lambda *given: traced.append(given) or for_each_row(*given))
    config = replace(BERT_WITH_HEADS, norm_eps=3e-12)  # no other test has traced this model
    assert config.layers > 1
    triglot.build("jax", triglot.initialize(config), mode="compiled").encode(*ragged(0)[:2])
    assert len(traced) == 1


@pytest.mark.long(framework="paddle")
def test_an_encoder_of_vectors_passes(framework, make_checkpoint, check_small):
    report = check_small(
        make_checkpoint(replace(VECTORS, activation="relu")), framework, mode="compiled", checks=["forward"]
    )
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
    model, batch = triglot.build(framework, triglot.initialize(BERT_WITH_HEADS), mode="compiled"), ragged(0, lengths)
    with ThreadPoolExecutor(4) as pool:
        encoded = [pool.submit(model.encode, *batch) for _ in range(2)]
        scored = [pool.submit(model.heads, *batch) for _ in range(2)]
    expected = {"output": model.encode(*batch), **model.heads(*batch)}
    for output, heads in zip(encoded, scored, strict=True):
        results = {"output": output.result(), **heads.result()}
        assert all(np.array_equal(results[name], expected[name]) for name in expected)


def test_pytorch_needs_no_compiler(make_checkpoint, monkeypatch):
    monkeypatch.setenv("CXX", "no-compiler")
    model = triglot.build("torch", make_checkpoint(BERT_WITH_HEADS), mode="compiled")
    assert np.isfinite(model.encode(*ragged(0))).all()


def test_pytorch_without_onednn_uses_its_compiler(make_checkpoint, monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    monkeypatch.setenv("CXX", "no-compiler")
    with pytest.raises(triglot.FrameworkError, match=r"needs a C\+\+ compiler"):
        triglot.build("torch", make_checkpoint(BERT_WITH_HEADS), mode="compiled")


def test_an_older_pytorch_is_refused_where_it_lacks_an_option(make_checkpoint, monkeypatch):
    """Version 2.11, which comes with some GPU machines, has no ``isolate_recompiles``."""

    def compile_of_2_11(model, *, fullgraph=False, dynamic=None, backend="inductor", mode=None, options=None):
        return model

    monkeypatch.setattr(torch, "compile", compile_of_2_11)
    with pytest.raises(triglot.FrameworkError, match=r"lacks an option that mode 'jit' needs; install torch==2\.13\.0"):
        triglot.build("torch", make_checkpoint(BERT_WITH_HEADS), mode="jit")


def test_jax_compiles_nothing_for_a_new_batch_of_similar_size(make_checkpoint):
    """One program serves all batches of a bucket whose longest rows need the same windows."""
    from jax import monitoring

    model: Any = triglot.build("jax", make_checkpoint(BERT_WITH_HEADS), mode="compiled")
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


@pytest.mark.parametrize(("longest", "windows"), [(20, [16, 32]), (100, [16, 32, 48, 64, 96, 128])], ids=str)
def test_jax_compiles_only_the_windows_that_the_rows_need(longest, windows, monkeypatch):
    read = []
    attend_window = jax_packed.attend_window
    monkeypatch.setattr(
        jax_packed,
        "attend_window",
        lambda config, own, *given: read.append(len(own)) or attend_window(config, own, *given),
    )
    config = replace(BERT_WITH_HEADS, source_max_length=500 + longest)  # traced by no other test, so JAX traces it here
    batch = inputs.random_batch(config, [longest, 20, 9, 5, 1], np.random.default_rng(0))
    assert isinstance(batch, inputs.EncoderBatch)
    checkpoint = triglot.initialize(config)
    model = triglot.build("jax", checkpoint, mode="compiled")
    results = {"output": model.encode(batch.source, batch.valid, batch.segment_ids)}
    assert ForwardTruth(checkpoint, batch, "float32").judge(results).verdict == "pass"
    assert sorted(set(read)) == windows


@pytest.mark.parametrize(("length", "is_packed"), [(16, False), (17, True)], ids=str)
def test_jax_packs_a_batch_without_padding_only_if_its_shape_is_rare(length, is_packed, make_checkpoint, monkeypatch):
    model: Any = triglot.build("jax", make_checkpoint(BERT_WITH_HEADS), mode="compiled")
    sizes = []

    def count(valid, **options):
        sizes.append(valid.shape)
        return pack(valid, **options)

    monkeypatch.setattr("triglot.impls.flax_nnx.packed.pack", count)
    model.encode(np.ones((2, length), np.int64))
    assert bool(sizes) == is_packed
