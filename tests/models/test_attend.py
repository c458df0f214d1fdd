"""Attention alone, compared with ``torch.nn.MultiheadAttention`` and article 004's code on the same weights."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from attention_inputs import CONFIG, HEADS, MASKS, ROWS, SOURCES, SQUARE, TARGETS, WIDTH, vectors, with_infinities
from torch.nn import functional

from triglot import impls
from triglot.parity.budgets import budget
from triglot.parity.truth import Reference, distance
from triglot.shared import inputs

TORCH_DTYPES = {"float32": torch.float32, "float64": torch.float64}


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
def test_attend_agrees_with_the_peer(implementation, peer, masks, dtype, sharp_attention):
    given, chosen = vectors(), MASKS[masks]
    values = {
        peer: PEERS[peer](sharp_attention, given, chosen, dtype),
        implementation: impls.build(implementation, sharp_attention, dtype=dtype).attend(**given, **chosen),
    }
    assert_within_noise(values, sharp_attention, given, chosen, dtype)


@pytest.mark.parametrize("lengths", [(1, 1), (1, 7), (7, 1), (6, 6), (29, 37)])
def test_lengths_up_to_the_maximum_agree_with_torch(implementation, lengths, sharp_attention):
    given = vectors(*lengths)
    values = {
        "torch.nn": torch_nn(sharp_attention, given, {}, "float64"),
        implementation: impls.build(implementation, sharp_attention, dtype="float64").attend(**given),
    }
    assert_within_noise(values, sharp_attention, given, {}, "float64")


def test_the_comparison_detects_faults(sharp_attention):
    """The faults: a missing mask, a wrong value, NaN, and summed instead of averaged weights."""
    given, masks = vectors(), MASKS["both"]
    output, weights = torch_nn(sharp_attention, given, masks, "float64")
    for change in ({}, {"key_valid": masks["key_valid"]}, {"bias": masks["bias"]}):
        wrong = {"fault": torch_nn(sharp_attention, given, change, "float64")}
        assert min(strains(wrong, sharp_attention, given, masks, "float64").values()) > 1, change
    shifted, not_a_number = output.copy(), output.copy()
    shifted[0, 0, 0] += 1e-11
    not_a_number[0, 0, 0] = np.nan
    for wrong in ((shifted, weights), (not_a_number, weights), (output, weights * HEADS)):
        with pytest.raises(AssertionError, match="times the budget"):
            assert_within_noise({"fault": wrong}, sharp_attention, given, masks, "float64")


@pytest.mark.parametrize("name", ["torch.nn", "article 004"])
def test_length_first_as_in_the_article_and_pytorch(implementation, name, sharp_attention):
    """With ``batch_first=False``, vectors and output have the length first. Masks and weights do not change."""
    given, masks = vectors(), MASKS["both"]
    model = impls.build(implementation, sharp_attention, dtype="float64")
    swapped = {part: np.ascontiguousarray(vector.swapaxes(0, 1)) for part, vector in given.items()}
    output, weights = model.attend(**swapped, **masks, batch_first=False)
    assert output.shape == (TARGETS, ROWS, WIDTH)
    assert weights.shape == (ROWS, TARGETS, SOURCES)
    ours = {implementation: (output.swapaxes(0, 1), weights)}
    assert_within_noise(
        ours | {name: PEERS[name](sharp_attention, given, masks, "float64")}, sharp_attention, given, masks, "float64"
    )


def test_allowed_and_minus_infinity_forbid_alike(implementation, sharp_attention):
    model, given = impls.build(implementation, sharp_attention), vectors()
    bias = with_infinities((ROWS, HEADS, *SQUARE))
    apart = {"allowed": np.isfinite(bias), "bias": np.where(np.isfinite(bias), bias, np.float32(0))}
    for one, other in zip(model.attend(**given, bias=bias), model.attend(**given, **apart), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("shape", [(1, 1, *SQUARE), (ROWS, 1, *SQUARE), (1, HEADS, *SQUARE)])
def test_masks_broadcast_over_rows_and_heads(implementation, shape, sharp_attention):
    model, given = impls.build(implementation, sharp_attention), vectors()
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


def test_weights_are_averaged_over_heads(implementation, sharp_attention):
    model, given = impls.build(implementation, sharp_attention, dtype="float64"), vectors()
    trace = model.trace(inputs.attention_batch(CONFIG, **given))
    output, weights = model.attend(**given)
    np.testing.assert_array_equal(output, trace["attention.output"])
    # Three numbers below 1 are summed and divided: three roundings.
    np.testing.assert_allclose(weights, trace["attention.weights"].mean(axis=1), rtol=0, atol=3 * 2.0**-53)
    np.testing.assert_allclose(weights.sum(axis=-1), 1, rtol=0, atol=SOURCES * 4 * 2.0**-53)


@pytest.mark.long(framework="jax")
@pytest.mark.parametrize("sizes", [{"value_size": 11}, {"key_size": 1, "value_size": 2, "heads": 7}])
def test_other_key_and_value_sizes_pass_every_check(framework, sizes, make_checkpoint, check_small):
    """PyTorch's module lacks these sizes, so the reference judges."""
    report = check_small(make_checkpoint(replace(CONFIG, **sizes)), framework)
    assert report.verdict == "pass", [row for row in report.rows if row.verdict != "pass"]
    assert {row.name for row in report.rows} >= {"attention.output", "averaged", "api.attend", "api.attend.weights"}


@pytest.mark.long(framework="jax")
@pytest.mark.parametrize("biases", [{}, {"projection_bias": True}, {"output_bias": False}])
def test_every_framework_passes_every_check(framework, biases, make_checkpoint, check_small):
    report = check_small(make_checkpoint(replace(CONFIG, **biases)), framework)
    assert report.verdict == "pass", [row for row in report.rows if row.verdict != "pass"]


def test_arguments_are_not_changed(implementation, sharp_attention):
    # Copies, because other tests may already have changed the masks, and changing them again may have no effect.
    given = vectors() | {name: mask.copy() for name, mask in MASKS["both"].items()}
    before = {name: array.copy() for name, array in given.items()}
    impls.build(implementation, sharp_attention).attend(**given)
    for name, array in given.items():
        np.testing.assert_array_equal(array, before[name])
