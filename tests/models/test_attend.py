"""Attention alone, compared with ``torch.nn.MultiheadAttention`` and article 004's code on the same weights."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

import triglot
from triglot import impls
from triglot.parity.budgets import UNIT_ROUNDOFF, budget
from triglot.parity.truth import Reference, distance
from triglot.shared import inputs
from triglot.shared.arrays import HALVES
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.choices import DTYPES
from triglot.shared.model.recipes import recipe

CONFIG = recipe("multihead-tiny")  # 3 heads of 8; at most 29 queries and 37 keys
ROWS, HEADS, TARGETS, SOURCES, WIDTH = 4, 3, 5, 7, 24
TORCH_DTYPES = {"float32": torch.float32, "float64": torch.float64}
LOWEST = float(np.finfo(np.float32).min)


@pytest.fixture
def checkpoint(make_checkpoint):
    """A checkpoint whose attention is sharp and whose biases are not zero."""
    made = make_checkpoint(CONFIG)
    return Checkpoint(CONFIG, {name: tensor * 2 for name, tensor in made.tensors.items()})


def vectors(targets=TARGETS, sources=SOURCES, seed=0) -> dict[str, Any]:
    generator = np.random.default_rng(seed)
    lengths = {"query": targets, "key": sources, "value": sources}
    return {name: generator.standard_normal((ROWS, n, WIDTH)).astype(np.float32) for name, n in lengths.items()}


def bias_of(shape, seed=1):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def with_infinities(shape):
    """Return a bias that forbids about a third of the keys, but never the first."""
    bias = bias_of(shape)
    bias[np.random.default_rng(2).random(shape) < 1 / 3] = -np.inf
    bias[..., 0] = 0.5
    return bias


KEY_VALID = np.arange(SOURCES) < np.array([7, 4, 1, 6])[:, None]
SQUARE = TARGETS, SOURCES
MASKS: dict[str, dict[str, Any]] = {
    "no mask": {},
    "key padding": {"key_valid": KEY_VALID},
    "one bias for all": {"bias": bias_of(SQUARE)},
    "a bias for each head and row": {"bias": bias_of((ROWS * HEADS, *SQUARE))},
    "a bias of four dimensions": {"bias": bias_of((ROWS, HEADS, *SQUARE))},
    "minus infinity for all": {"bias": with_infinities(SQUARE)},
    "minus infinity for each head": {"bias": with_infinities((ROWS * HEADS, *SQUARE))},
    "minus infinity in four dimensions": {"bias": with_infinities((ROWS, HEADS, *SQUARE))},
    "both": {"key_valid": KEY_VALID, "bias": with_infinities((ROWS * HEADS, *SQUARE))},
}


def tensors_of(checkpoint, dtype):
    return {
        name: torch.from_numpy(np.array(tensor)).to(TORCH_DTYPES[dtype]) for name, tensor in checkpoint.tensors.items()
    }


def torch_masks(masks, dtype):
    """Translate masks to PyTorch's arguments: its bias has at most three dimensions.

    Both are floats, because PyTorch deprecates a boolean padding mask beside a float bias.
    """
    found = {}
    if "key_valid" in masks:
        found["key_padding_mask"] = torch.zeros(masks["key_valid"].shape, dtype=TORCH_DTYPES[dtype]).masked_fill(
            torch.from_numpy(~masks["key_valid"]), float("-inf")
        )
    if "bias" in masks:
        bias = torch.from_numpy(masks["bias"]).to(TORCH_DTYPES[dtype])
        found["attn_mask"] = bias.flatten(0, 1) if bias.dim() == 4 else bias
    return found


def torch_nn(checkpoint, given, masks, dtype):
    """Compute with ``torch.nn.MultiheadAttention`` on the weights of a checkpoint."""
    tensors = tensors_of(checkpoint, dtype)
    module = torch.nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, dtype=TORCH_DTYPES[dtype])
    packed = torch.cat([tensors[f"attention.{name}.weight"].T for name in ("query", "key", "value")])
    module.load_state_dict(
        {
            "in_proj_weight": packed,
            "in_proj_bias": torch.zeros(3 * WIDTH, dtype=TORCH_DTYPES[dtype]),
            "out_proj.weight": tensors["attention.output.weight"].T,
            "out_proj.bias": tensors["attention.output.bias"],
        }
    )
    parts = [torch.from_numpy(given[name]).to(TORCH_DTYPES[dtype]) for name in ("query", "key", "value")]
    with torch.no_grad():  # in training mode, so that PyTorch does not take its fast path
        output, weights = module(*parts, **torch_masks(masks, dtype), need_weights=True, average_attn_weights=True)
    return output.numpy(), weights.numpy()


def article_004(checkpoint, given, masks, dtype):
    """Compute with the code of the article: length first, bias added, padding filled with minus infinity."""
    tensors = tensors_of(checkpoint, dtype)
    query, key, value = (
        torch.from_numpy(given[n]).to(TORCH_DTYPES[dtype]).transpose(0, 1) for n in ("query", "key", "value")
    )
    (targets, rows, width), sources = query.shape, len(key)
    size = width // HEADS
    q = functional.linear(query, tensors["attention.query.weight"].T) * float(size) ** -0.5
    k = functional.linear(key, tensors["attention.key.weight"].T)
    v = functional.linear(value, tensors["attention.value.weight"].T)
    q, k, v = (part.contiguous().view(-1, rows * HEADS, size).transpose(0, 1) for part in (q, k, v))
    scores = torch.bmm(q, k.transpose(1, 2))
    if "bias" in masks:
        bias = torch.from_numpy(masks["bias"]).to(TORCH_DTYPES[dtype])
        scores += bias.flatten(0, 1) if bias.dim() == 4 else bias
    if "key_valid" in masks:
        scores = scores.view(rows, HEADS, targets, sources)
        scores = scores.masked_fill(torch.from_numpy(~masks["key_valid"])[:, None, None], float("-inf"))
        scores = scores.view(rows * HEADS, targets, sources)
    weights = functional.softmax(scores, dim=-1)
    context = torch.bmm(weights, v).transpose(0, 1).contiguous().view(targets, rows, width)
    output = functional.linear(context, tensors["attention.output.weight"].T, tensors["attention.output.bias"])
    averaged = weights.view(rows, HEADS, targets, sources).sum(dim=1) / HEADS
    return output.transpose(0, 1).numpy(), averaged.numpy()


PEERS = {"torch.nn": torch_nn, "article 004": article_004}


def strains(values, checkpoint, given, masks, dtype):
    """Return the error of each output and its weights, in multiples of the parity budget.

    The budget is a few roundings of numbers of about 1: some 1e-6 in float32, some 1e-15 in float64.
    """
    batch = inputs.attention_batch(checkpoint.config, **given, **masks)
    expectation = Reference(checkpoint, dtype).truth_of_values(batch, {})
    relative_errors = {}
    for who, (output, weights) in values.items():
        for name, value in (("attention.output", output), ("averaged", weights)):
            truth = expectation.values[name]
            limit = budget(float(expectation.noise[name].max()), float(np.abs(truth).max()), dtype)
            assert limit < {"float32": 1e-4, "float64": 1e-12}[dtype]
            assert value.dtype.name == dtype
            assert value.shape == truth.shape
            relative_errors[f"{who}: {name}"] = distance(value, truth, None) / limit
    return relative_errors


def assert_within_noise(values, checkpoint, given, masks, dtype):
    """Raise if a value is over its budget. Not an ``assert``, which ``-O`` would remove."""
    for what, strain in strains(values, checkpoint, given, masks, dtype).items():
        if not strain <= 1:  # also true for NaN
            raise AssertionError(f"{what}: {strain:.3g} times the budget")


@pytest.mark.parametrize("dtype", TORCH_DTYPES)
@pytest.mark.parametrize("peer", PEERS)
@pytest.mark.parametrize("masks", MASKS)
def test_attend_agrees_with_the_peer(implementation, peer, masks, dtype, checkpoint):
    given, chosen = vectors(), MASKS[masks]
    values = {
        peer: PEERS[peer](checkpoint, given, chosen, dtype),
        implementation: impls.build(implementation, checkpoint, dtype=dtype).attend(**given, **chosen),
    }
    assert_within_noise(values, checkpoint, given, chosen, dtype)


@pytest.mark.parametrize("lengths", [(1, 1), (1, 7), (7, 1), (6, 6), (29, 37)])
def test_lengths_up_to_the_maximum_agree_with_torch(implementation, lengths, checkpoint):
    given = vectors(*lengths)
    values = {
        "torch.nn": torch_nn(checkpoint, given, {}, "float64"),
        implementation: impls.build(implementation, checkpoint, dtype="float64").attend(**given),
    }
    assert_within_noise(values, checkpoint, given, {}, "float64")


def test_the_comparison_detects_faults(checkpoint):
    """The faults: a missing mask, a wrong value, NaN, and summed instead of averaged weights."""
    given, masks = vectors(), MASKS["both"]
    output, weights = torch_nn(checkpoint, given, masks, "float64")
    for change in ({}, {"key_valid": masks["key_valid"]}, {"bias": masks["bias"]}):
        wrong = {"fault": torch_nn(checkpoint, given, change, "float64")}
        assert min(strains(wrong, checkpoint, given, masks, "float64").values()) > 1, change
    shifted, not_a_number = output.copy(), output.copy()
    shifted[0, 0, 0] += 1e-11
    not_a_number[0, 0, 0] = np.nan
    for wrong in ((shifted, weights), (not_a_number, weights), (output, weights * HEADS)):
        with pytest.raises(AssertionError, match="times the budget"):
            assert_within_noise({"fault": wrong}, checkpoint, given, masks, "float64")


@pytest.mark.parametrize("name", ["torch.nn", "article 004"])
def test_length_first_as_in_the_article_and_pytorch(implementation, name, checkpoint):
    """With ``batch_first=False``, vectors and output have the length first. Masks and weights do not change."""
    given, masks = vectors(), MASKS["both"]
    model = impls.build(implementation, checkpoint, dtype="float64")
    swapped = {part: np.ascontiguousarray(vector.swapaxes(0, 1)) for part, vector in given.items()}
    output, weights = model.attend(**swapped, **masks, batch_first=False)
    assert output.shape == (TARGETS, ROWS, WIDTH)
    assert weights.shape == (ROWS, TARGETS, SOURCES)
    ours = {implementation: (output.swapaxes(0, 1), weights)}
    assert_within_noise(
        ours | {name: PEERS[name](checkpoint, given, masks, "float64")}, checkpoint, given, masks, "float64"
    )


def test_allowed_and_minus_infinity_forbid_alike(implementation, checkpoint):
    model, given = impls.build(implementation, checkpoint), vectors()
    bias = with_infinities((ROWS, HEADS, *SQUARE))
    apart = {"allowed": np.isfinite(bias), "bias": np.where(np.isfinite(bias), bias, np.float32(0))}
    for one, other in zip(model.attend(**given, bias=bias), model.attend(**given, **apart), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("shape", [(1, 1, *SQUARE), (ROWS, 1, *SQUARE), (1, HEADS, *SQUARE)])
def test_masks_broadcast_over_rows_and_heads(implementation, shape, checkpoint):
    model, given = impls.build(implementation, checkpoint), vectors()
    bias = with_infinities(shape)
    allowed = np.random.default_rng(3).random(shape) < 0.8
    whole: dict[str, Any] = {
        "bias": np.broadcast_to(bias, (ROWS, HEADS, *SQUARE)),
        "allowed": np.broadcast_to(allowed, (ROWS, HEADS, *SQUARE)),
    }
    for one, other in zip(
        model.attend(**given, bias=bias, allowed=allowed), model.attend(**given, **whole), strict=True
    ):
        np.testing.assert_array_equal(one, other)


def test_weights_are_averaged_over_heads(implementation, checkpoint):
    model, given = impls.build(implementation, checkpoint, dtype="float64"), vectors()
    trace = model.trace(inputs.attention_batch(CONFIG, **given))
    output, weights = model.attend(**given)
    np.testing.assert_array_equal(output, trace["attention.output"])
    # Three numbers below 1 are summed and divided: three roundings.
    np.testing.assert_allclose(weights, trace["attention.weights"].mean(axis=1), rtol=0, atol=3 * 2.0**-53)
    np.testing.assert_allclose(weights.sum(axis=-1), 1, rtol=0, atol=SOURCES * 4 * 2.0**-53)


# Row 0 has no real key, and query 2 of row 1 may attend to nothing.
NOTHING = {
    "key_valid": np.array([[False] * SOURCES, *[[True] * SOURCES] * 3]),
    "bias": np.zeros((ROWS, 1, *SQUARE), np.float32),
}
NOTHING["bias"][1, :, 2] = -np.inf
MASKINGS: dict[str, dict[str, Any]] = {
    "exclude": {"masking": "exclude"},
    "fill": {"masking": "fill", "masking_value": -1e9},
    "fill the least": {"masking": "fill", "masking_value": -1e308},
    "add": {"masking": "add", "masking_value": -1e4},
    "add the least": {"masking": "add", "masking_value": -1e308},
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("masking", MASKINGS)
def test_query_that_may_attend_to_nothing(implementation, masking, dtype, checkpoint):
    """With "exclude" the weights are 0, with "fill" they are uniform. (PyTorch returns NaN.)

    With "add" the value cancels, as if nothing were forbidden. But next to a value below -1e9, float32 has no digits
    left for the score, so the weights are uniform too.
    """
    if dtype in HALVES and implementation in ("paddle", "numpy"):
        with pytest.raises(triglot.FrameworkError, match=rf"no {dtype} on a CPU|dtype '{dtype}' is not supported"):
            impls.build(implementation, checkpoint, dtype=dtype)
        return
    chosen, config = MASKINGS[masking], replace(CONFIG, **MASKINGS[masking])
    given = vectors()
    model = impls.build(implementation, Checkpoint(config, checkpoint.tensors), dtype=dtype)
    output, weights = (value.astype(np.float64) for value in model.attend(**given, **NOTHING))
    assert np.isfinite(output).all()
    assert np.isfinite(weights).all()
    unit = UNIT_ROUNDOFF[dtype]
    for row, queries in ((0, slice(None)), (1, slice(2, 3))):
        if masking == "exclude":
            np.testing.assert_array_equal(weights[row, queries], 0)
            bias = checkpoint.tensors["attention.output.bias"].astype(np.float64)
            np.testing.assert_allclose(
                output[row, queries], np.broadcast_to(bias, output[row, queries].shape), rtol=unit
            )
        elif chosen["masking"] == "fill" or masking == "add the least":
            # A softmax of equal numbers and a mean of three of them: a few roundings.
            np.testing.assert_allclose(weights[row, queries], 1 / SOURCES, rtol=8 * unit)
        else:
            free = impls.build("numpy", Checkpoint(config, checkpoint.tensors)).attend(**given)[1][row, queries]
            # A score of up to 30 keeps the precision of 10,000 in float32, or its own precision in 16 bits.
            precision = max(1e4 * min(unit, 2.0**-24), 30 * unit)
            np.testing.assert_allclose(weights[row, queries], free, rtol=0, atol=4 * precision)
    assert (weights[2:].sum(axis=-1) > 0.9).all()


@pytest.mark.parametrize("name", ["query", "key", "value"])
def test_vectors_too_large_for_float16_are_refused(framework, name, checkpoint):
    """Otherwise 100,000 would silently become infinity, or 65,504."""
    if framework == "paddle":
        with pytest.raises(triglot.FrameworkError, match="no float16 on a CPU"):
            impls.build(framework, checkpoint, dtype="float16")
        return
    given = vectors()
    given[name] = given[name].copy()
    given[name][0, 0, 0] = -1e5
    with pytest.raises(triglot.InputError, match=f"^{name} holds a number beyond 65504, which float16 cannot hold"):
        impls.build(framework, checkpoint, dtype="float16").attend(**given)
    impls.build(framework, checkpoint, dtype="bfloat16").attend(**given)


def test_token_ids_too_large_for_float16_are_not():
    arrays = {"source": np.array([[119_546]], np.int32)}
    assert inputs.fit_dtype(arrays, "float16") == arrays


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("masking", MASKINGS)
@pytest.mark.parametrize("lowest", [LOWEST, -1e38, -1e308], ids=["float32", "1e38", "1e308"])
def test_lowest_bias_never_gives_nan(implementation, masking, lowest, dtype, checkpoint):
    """The usual mask of transformers is a format's lowest number, possibly next to an equally low masking value.

    A query that has it for every key keeps no digit of its scores, so its weights are uniform. Float16 is an exception:
    scores are added in float32, where its lowest number, -65,504, leaves some digits.
    """
    if dtype in HALVES and implementation in ("paddle", "numpy"):
        with pytest.raises(triglot.FrameworkError, match=rf"no {dtype} on a CPU|dtype '{dtype}' is not supported"):
            impls.build(implementation, checkpoint, dtype=dtype)
        return
    config = replace(CONFIG, **MASKINGS[masking])
    model = impls.build(implementation, Checkpoint(config, checkpoint.tensors), dtype=dtype)
    bias = np.full(SQUARE, lowest)
    bias[0, 1:] = 0
    for masks in ({}, {"key_valid": NOTHING["key_valid"]}):
        output, weights = (value.astype(np.float64) for value in model.attend(**vectors(), **masks, bias=bias))
        assert np.isfinite(output).all()
        assert np.isfinite(weights).all()
        # Paddle's softmax clips exponents at -64.
        np.testing.assert_allclose(weights[1:, 0, 0], 0, rtol=0, atol=np.exp(-63))
        if dtype != "float16":
            np.testing.assert_allclose(weights[1:, 1:], 1 / SOURCES, rtol=2.0**-7)
            continue
        free = impls.build("numpy", Checkpoint(config, checkpoint.tensors)).attend(**vectors(), **masks)[1]
        precision = max(65504 * 2.0**-24, 30 * UNIT_ROUNDOFF[dtype])
        np.testing.assert_allclose(weights[1:, 1:], free[1:, 1:], rtol=0, atol=4 * precision)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["translation-tiny", "annotated-tiny", "prenorm-tiny"])
def test_target_that_begins_with_padding_has_finite_scores(framework, name, dtype, make_checkpoint):
    """Its first queries may attend to nothing: they see only padding, and later tokens are hidden."""
    config = replace(recipe(name), pad_id=2)
    checkpoint = make_checkpoint(config)
    source, target = np.array([[3, 4, 5], [6, 7, 2]]), np.array([[2, 2, 9, 10], [0, 12, 2, 2]])
    scores = impls.build(framework, checkpoint, dtype=dtype).forward(source, target)
    assert np.isfinite(scores).all()
    np.testing.assert_array_equal(scores[target == 2], 0)
    batch = inputs.pair_batch(config, source, target)
    expectation = Reference(checkpoint, dtype).truth_of_values(batch, {})
    weights = expectation.values["decoder.layers.0.self_attention.weights"][0, :, :2]
    np.testing.assert_allclose(weights, 0 if config.masking == "exclude" else 1 / 4, rtol=1e-6)
    where = f"heads.{config.heads_on_top[0]}"
    truth = expectation.values[where]
    assert distance(scores, truth, None) <= budget(
        float(expectation.noise[where].max()), float(np.abs(truth).max()), dtype
    )


@pytest.mark.parametrize("sizes", [{"key_size": 5}, {"value_size": 11}, {"key_size": 1, "value_size": 2, "heads": 7}])
def test_other_key_and_value_sizes_pass_every_check(framework, sizes, make_checkpoint, check_small):
    """PyTorch's module lacks these sizes, so the reference judges."""
    report = check_small(make_checkpoint(replace(CONFIG, **sizes)), framework)
    assert report.verdict == "pass", [row for row in report.rows if row.verdict != "pass"]
    assert {row.name for row in report.rows} >= {"attention.output", "averaged", "api.attend", "api.attend.weights"}


@pytest.mark.parametrize("biases", [{}, {"projection_bias": True}, {"output_bias": False}])
def test_every_framework_passes_every_check(framework, biases, make_checkpoint, check_small):
    report = check_small(make_checkpoint(replace(CONFIG, **biases)), framework)
    assert report.verdict == "pass", [row for row in report.rows if row.verdict != "pass"]


def test_arguments_are_not_changed(implementation, checkpoint):
    given = vectors() | MASKS["both"]
    before = {name: array.copy() for name, array in given.items()}
    impls.build(implementation, checkpoint).attend(**given)
    for name, array in given.items():
        np.testing.assert_array_equal(array, before[name])


def array(*shape, dtype="float32"):
    return np.ones(shape, dtype)


MASK_SHAPES = r"expected \(5, 7\), \(12, 5, 7\), or \(4, 3, 5, 7\)"
VECTORS = r"expected float32 or float64 \(B, T, 24\).*batch_first=False"
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "flat query": ({"query": array(5, 24)}, rf"query is float32 \(5, 24\); {VECTORS}"),
    "key of another size": ({"key": array(4, 7, 23)}, rf"key is float32 \(4, 7, 23\); {VECTORS}"),
    "integer values": ({"value": array(4, 7, 24, dtype="int64")}, rf"value is int64 .*; {VECTORS}"),
    "float16 query": ({"query": array(4, 5, 24, dtype="float16")}, rf"query is float16 .*; {VECTORS}"),
    "NaN query": ({"query": array(4, 5, 24) * np.nan}, "query is not finite"),
    "infinite key": ({"key": array(4, 7, 24) * np.inf}, "key is not finite"),
    "value beyond float32": ({"value": array(4, 7, 24, dtype="float64") * 1e39}, "value is not finite in float32"),
    "no query": ({"query": array(4, 0, 24)}, r"query is empty.*at least one"),
    "no rows": ({"key": array(0, 7, 24)}, r"key is empty.*at least one"),
    "ragged query": ({"query": [[[1.0]], [[1.0, 2.0]]]}, r"query.*different lengths; pad"),
    "keys longer than values": ({"key": array(4, 8, 24)}, r"query, key and value.*keys as long as values"),
    "query of another batch": ({"query": array(3, 5, 24)}, r"query, key and value.*as many rows in each"),
    "length first without batch_first=False": (
        {"query": array(5, 4, 24), "key": array(7, 4, 24), "value": array(7, 4, 24)},
        r"query, key and value.*batch first; expected as many rows",
    ),
    "long query": ({"query": array(4, 30, 24)}, "query length 30 is over the maximum 29"),
    "long keys": ({"key": array(4, 38, 24), "value": array(4, 38, 24)}, "key length 38 is over the maximum 37"),
    "float key_valid": ({"key_valid": array(4, 7)}, r"key_valid is float32.*bool \(4, 7\)"),
    "key_valid of the query": ({"key_valid": array(4, 5, dtype="bool")}, r"key_valid.*\(4, 5\).*bool \(4, 7\)"),
    "bool bias": ({"bias": array(5, 7, dtype="bool")}, r"bias is bool.*expected float32 or float64"),
    "float16 bias": ({"bias": array(5, 7, dtype="float16")}, r"bias is float16.*expected float32 or float64"),
    "NaN bias": ({"bias": array(5, 7) * np.nan}, r"bias.*finite or minus infinity"),
    "infinite bias": ({"bias": array(5, 7) * np.inf}, r"bias.*finite or minus infinity"),
    "bias of one dimension": ({"bias": array(7)}, rf"bias is float32 \(7,\); {MASK_SHAPES}"),
    "transposed bias": ({"bias": array(7, 5)}, rf"bias is float32 \(7, 5\); {MASK_SHAPES}"),
    "bias for each row": ({"bias": array(4, 5, 7)}, rf"bias is float32 \(4, 5, 7\); {MASK_SHAPES}"),
    "bias of two heads": ({"bias": array(4, 2, 5, 7)}, rf"bias is float32 \(4, 2, 5, 7\); {MASK_SHAPES}"),
    "bias of five dimensions": ({"bias": array(1, 1, 1, 5, 7)}, rf"bias .*; {MASK_SHAPES}"),
    "float allowed": ({"allowed": array(5, 7)}, r"allowed is float32.*expected bool"),
    "allowed for each row": ({"allowed": array(4, 5, 7, dtype="bool")}, rf"allowed is bool \(4, 5, 7\); {MASK_SHAPES}"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_input_that_does_not_fit_is_refused(kind):
    changes, message = REFUSED[kind]
    with pytest.raises(triglot.InputError, match=message):
        inputs.attention_batch(CONFIG, **{**vectors(), **changes})


@pytest.mark.parametrize("kind", ["flat query", "bias for each row", "keys longer than values"])
def test_every_implementation_refuses_input_that_does_not_fit(kind, implementation, checkpoint):
    changes, message = REFUSED[kind]
    with pytest.raises(triglot.InputError, match=message):
        impls.build(implementation, checkpoint).attend(**{**vectors(), **changes})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m.encode([[1]]), "nothing to encode; use attend"),
        (lambda m: m.heads([[1]]), "nothing to encode; use attend"),
        (lambda m: m.forward([[1]], [[1]]), "no decoder.*; use attend"),
        (lambda m: m.generate([[1]]), "no decoder.*; use attend"),
    ],
)
def test_attention_alone_refuses_the_other_methods(call, message, implementation, checkpoint):
    model = impls.build(implementation, checkpoint)
    with pytest.raises(triglot.InputError, match=message):
        call(model)


@pytest.mark.parametrize("name", ["bert-base-tiny", "translation-tiny"])
def test_other_models_refuse_attend(name, implementation, make_checkpoint):
    model = impls.build(implementation, make_checkpoint(name))
    with pytest.raises(triglot.InputError, match=rf"{model.config.kind}, not attention alone; use encode"):
        model.attend(**vectors())


def test_a_batch_is_read_from_a_file(tmp_path):
    given = vectors() | MASKS["both"]
    np.savez(tmp_path / "batch.npz", **given)
    read = inputs.read_batch(CONFIG, tmp_path / "batch.npz")
    for name, array in inputs.attention_batch(CONFIG, **given).arrays().items():
        np.testing.assert_array_equal(read.arrays()[name], array)
    np.savez(tmp_path / "half.npz", query=given["query"], key=given["key"])
    with pytest.raises(triglot.InputError, match=r"half.npz lacks value; expected query, key, value, allowed, "):
        inputs.read_batch(CONFIG, tmp_path / "half.npz")
    np.savez(tmp_path / "more.npz", **given, token_ids=np.zeros((1, 1), np.int64))
    with pytest.raises(triglot.InputError, match=r"more.npz holds token_ids; expected query, key, value, allowed, "):
        inputs.read_batch(CONFIG, tmp_path / "more.npz")


def test_parity_of_the_recipe_on_a_file_of_inputs(command, workplace):
    np.savez(workplace / "batch.npz", **vectors(), bias=bias_of((ROWS * HEADS, *SQUARE)))
    code, shown, _ = command("parity", "multihead-tiny", "--inputs", "batch.npz", "--json", "report.json")
    assert code == 0
    assert shown.endswith("verdict: pass\n")
    report = json.loads((workplace / "report.json").read_text())
    assert {check["framework"] for check in report["checks"]} == set(triglot.frameworks())
    names = {check["name"] for check in report["checks"]}
    assert {"attention.scores", "attention.output", "averaged", "api.attend", "api.attend.weights"} <= names


def test_parity_refuses_inputs_of_another_model(command, workplace):
    np.savez(workplace / "batch.npz", token_ids=np.ones((1, 2), np.int64))
    code, _, complaint = command("parity", "multihead-tiny", "--inputs", "batch.npz", "--framework", "torch")
    assert code == 2
    assert "batch.npz holds token_ids; expected query, key, value, allowed, key_valid, bias" in complaint


def test_checkpoint_is_saved_inspected_and_loaded(command, workplace, checkpoint):
    triglot.save(checkpoint, "model.npz")
    again = triglot.load("model.npz", verify="full")
    assert again.config == CONFIG
    assert again.digest == checkpoint.digest
    assert list(again.tensors) == sorted(checkpoint.tensors)
    code, shown, _ = command("inspect", "model.npz")
    assert code == 0
    assert checkpoint.digest in shown
    assert "attention.output.bias" in shown
    code, _, _ = command("port", "model.npz", "again.npz")
    assert code == 0
    assert (workplace / "again.npz").read_bytes() == (workplace / "model.npz").read_bytes()


def test_foreign_dialects_refuse_attention(command, workplace, checkpoint):
    triglot.save(checkpoint, "model.npz")
    code, _, complaint = command("port", "model.npz", "folder", "--target-dialect", "huggingface")
    assert code == 2
    assert "attention" in complaint
    assert not (workplace / "folder").exists()
