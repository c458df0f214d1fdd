"""Against encoders that nobody here wrote, on the same weights: within the noise of the reference."""

from dataclasses import replace

import numpy as np
import pytest

from triglot import impls
from triglot.models import resolve
from triglot.parity.budgets import budget
from triglot.parity.checks import Check
from triglot.parity.truth import Reference, distance
from triglot.shared import inputs
from triglot.shared.model.recipes import recipe


def assert_within_noise(values, expectation, name, dtype="float32"):
    """Each of ``values`` is as close to the truth as a correct implementation is; ``-O`` cannot remove it."""
    truth = expectation.values[name]
    limit = budget(expectation.noise[name], float(np.abs(truth).max()), dtype)
    for who, value in values.items():
        error = distance(value, truth, None)
        if not error <= limit:  # also true for NaN
            raise AssertionError(f"{who}: error {error:.3g} over the budget {limit:.3g}")


def expectation_of(checkpoint, batch):
    return Reference(checkpoint, "float32").truth_of_check(Check("end_to_end", batch, "given"), {})


def test_the_comparison_notices_one_wrong_value(make_checkpoint):
    checkpoint = make_checkpoint("dygraph-tiny")
    batch = inputs.random_batch(checkpoint.config, [5, 3], np.random.default_rng(0))
    expectation = expectation_of(checkpoint, batch)
    value = expectation.values["output"].astype(np.float32)
    assert_within_noise({"the truth, rounded": value}, expectation, "output")
    value[0, 0, 0] += 1e-4
    with pytest.raises(AssertionError, match="over the budget"):
        assert_within_noise({"shifted": value}, expectation, "output")
    value[0, 0, 0] = np.nan
    with pytest.raises(AssertionError, match="over the budget"):
        assert_within_noise({"NaN": value}, expectation, "output")


@pytest.fixture(scope="module")
def minilm():
    """MiniLM, a batch of real sentences, and what a correct implementation gives for it."""
    source = resolve("minilm")
    batches, _ = source.batches(4, 8, seed=0)
    return source, batches[0], expectation_of(source.checkpoint, batches[0])


def test_minilm_against_transformers(framework, minilm):
    """The real model on real sentences, and the library that it comes from on the very same files."""
    import torch
    import transformers

    source, batch, expectation = minilm
    bert = transformers.BertModel.from_pretrained(source.tokenizer.parent, attn_implementation="eager").eval()
    with torch.inference_mode():
        theirs = bert(torch.from_numpy(batch.source).long(), attention_mask=torch.from_numpy(batch.valid).long())
    model = impls.build(framework, source.checkpoint)
    values = {
        "transformers": np.where(batch.valid[:, :, None], theirs.last_hidden_state.numpy(), 0),
        framework: model.encode(batch.source, batch.valid),
    }
    assert_within_noise(values, expectation, "output")
    poolers = {
        "transformers": theirs.pooler_output.numpy(),
        framework: model.heads(batch.source, batch.valid)["pooler"],
    }
    assert_within_noise(poolers, expectation, "heads.pooler")


@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_dygraph_against_paddle_nn(framework, activation, make_checkpoint):
    import paddle

    config = replace(recipe("dygraph-tiny"), activation=activation)
    checkpoint = make_checkpoint(config)
    batch = inputs.random_batch(config, [9, 2, 6], np.random.default_rng(0))
    layer = paddle.nn.TransformerEncoderLayer(
        config.hidden_size,
        config.heads,
        config.feed_forward_size,
        dropout=0.0,
        activation=activation,
        normalize_before=True,
        layer_norm_eps=config.norm_eps,
    )
    norm = paddle.nn.LayerNorm(config.hidden_size, epsilon=config.norm_eps)
    encoder = paddle.nn.TransformerEncoder(layer, config.layers, norm)
    encoder.eval()
    state = encoder.state_dict()
    ours = paddle_names(config)
    assert set(ours) == set(state)
    for name, canonical in ours.items():
        state[name].set_value(checkpoint.tensors[canonical])
    bias = np.where(batch.valid[:, None, None, :], 0, -1e4).astype(np.float32)
    with paddle.no_grad():
        theirs = encoder(paddle.to_tensor(batch.source), paddle.to_tensor(bias)).numpy()
    values = {
        "paddle.nn": np.where(batch.valid[:, :, None], theirs, 0),
        framework: impls.build(framework, checkpoint).encode(batch.source, batch.valid),
    }
    assert_within_noise(values, expectation_of(checkpoint, batch), "output")


@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_dygraph_against_torch_nn(framework, activation, make_checkpoint):
    import torch

    config = replace(recipe("dygraph-tiny"), activation=activation)
    checkpoint = make_checkpoint(config)
    batch = inputs.random_batch(config, [9, 2, 6], np.random.default_rng(0))
    layer = torch.nn.TransformerEncoderLayer(
        config.hidden_size,
        config.heads,
        config.feed_forward_size,
        dropout=0.0,
        activation=activation,
        layer_norm_eps=config.norm_eps,
        batch_first=True,
        norm_first=True,
    )
    norm = torch.nn.LayerNorm(config.hidden_size, eps=config.norm_eps)
    encoder = torch.nn.TransformerEncoder(layer, config.layers, norm, enable_nested_tensor=False)
    encoder.load_state_dict(torch_state(checkpoint), strict=True)
    with torch.inference_mode():
        hidden = torch.from_numpy(~batch.valid)
        theirs = encoder.eval()(torch.from_numpy(batch.source), src_key_padding_mask=hidden).numpy()
    values = {
        "torch.nn": np.where(batch.valid[:, :, None], theirs, 0),
        framework: impls.build(framework, checkpoint).encode(batch.source, batch.valid),
    }
    assert_within_noise(values, expectation_of(checkpoint, batch), "output")


def test_free_key_and_value_sizes(framework, make_checkpoint):
    """Key size 5 and value size 7 beside hidden / heads = 8, against attention written here with einsum."""
    config = replace(recipe("dygraph-tiny"), layers=1, key_size=5, value_size=7)
    checkpoint = make_checkpoint(config)
    batch = inputs.random_batch(config, [6, 4], np.random.default_rng(0))
    values = {framework: impls.build(framework, checkpoint).trace(batch)["encoder.layers.0.attention.output"]}
    expectation = expectation_of(checkpoint, batch)
    weights = {name: tensor.astype(np.float64) for name, tensor in checkpoint.tensors.items()}
    x = expectation.values["encoder.layers.0.pre_attention.norm"]

    def project(name, size):
        path = f"encoder.layers.0.attention.{name}"
        matrix = weights[f"{path}.weight"].reshape(config.hidden_size, config.heads, size)
        return np.einsum("bsd,dhk->bhsk", x, matrix) + weights[f"{path}.bias"].reshape(config.heads, 1, size)

    query, key, value = project("query", 5), project("key", 5), project("value", 7)
    scores = np.einsum("bhtk,bhsk->bhts", query, key) / np.sqrt(5)
    scores = scores + np.where(batch.valid[:, None, None, :], 0, -1e4)
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
    attention = exponentials / exponentials.sum(axis=-1, keepdims=True)
    out = weights["encoder.layers.0.attention.output.weight"].reshape(config.heads, 7, config.hidden_size)
    by_hand = np.einsum("bhts,bhsv,hvd->btd", attention, value, out) + weights["encoder.layers.0.attention.output.bias"]
    truth = expectation.values["encoder.layers.0.attention.output"]
    # Two orders of the same sums in float64 on values around 1: 1e-14 is 45 units.
    np.testing.assert_allclose(truth, by_hand, rtol=0, atol=1e-14)
    selected = batch.valid[:, :, None]
    limit = budget(expectation.noise["encoder.layers.0.attention.output"], float(np.abs(truth).max()), "float32")
    assert distance(values[framework], truth, selected) <= limit


def test_sinusoidal_positions_in_every_framework(implementation, make_checkpoint):
    config = replace(recipe("bert-base-tiny"), positions="sinusoidal", segments=0)
    checkpoint = make_checkpoint(config)
    ids = np.arange(14).reshape(2, 7)
    batch = inputs.encoder_batch(config, ids)
    seen = impls.build(implementation, checkpoint, dtype="float32").trace(batch)["embeddings.sum"]
    place = np.arange(7)[:, None] / 10000.0 ** ((np.arange(24) // 2 * 2) / 24)
    table = np.where(np.arange(24) % 2 == 0, np.sin(place), np.cos(place))
    expected = checkpoint.tensors["embeddings.token.weight"][ids] + table
    # One rounding of the table and one of the sum, on numbers below 2.
    np.testing.assert_allclose(seen, expected, rtol=0, atol=2 * 2.0**-24 * 2)


def test_position_offset_skips_rows(implementation, make_checkpoint):
    config = replace(recipe("bert-base-tiny"), position_offset=2, segments=0)
    checkpoint = make_checkpoint(config)
    ids = np.full((1, config.source_max_length), 3)
    model = impls.build(implementation, checkpoint, dtype="float32")
    seen = model.trace(inputs.encoder_batch(config, ids))["embeddings.sum"]
    position = checkpoint.tensors["embeddings.position.weight"]
    assert len(position) == config.source_max_length + 2
    np.testing.assert_array_equal(seen[0], checkpoint.tensors["embeddings.token.weight"][3] + position[2:])


PADDLE_MODULES = {
    "self_attn.q_proj": "attention.query",
    "self_attn.k_proj": "attention.key",
    "self_attn.v_proj": "attention.value",
    "self_attn.out_proj": "attention.output",
    "linear1": "feed_forward.inner",
    "linear2": "feed_forward.output",
}
NORMS = {"norm1": "pre_attention.norm", "norm2": "pre_feed_forward.norm"}


def paddle_names(config):
    """Paddle's name -> canonical name; both store linear weights as (in, out)."""
    table = {"norm.weight": "encoder.final.norm.scale", "norm.bias": "encoder.final.norm.bias"}
    for layer in range(config.layers):
        theirs, ours = f"layers.{layer}", f"encoder.layers.{layer}"
        for module, canonical in PADDLE_MODULES.items():
            table |= {f"{theirs}.{module}.{leaf}": f"{ours}.{canonical}.{leaf}" for leaf in ("weight", "bias")}
        for module, canonical in NORMS.items():
            table[f"{theirs}.{module}.weight"] = f"{ours}.{canonical}.scale"
            table[f"{theirs}.{module}.bias"] = f"{ours}.{canonical}.bias"
    return table


def torch_state(checkpoint):
    """The state dict of torch.nn.TransformerEncoder: query, key and value packed, linear weights (out, in)."""
    import torch

    tensors, state = checkpoint.tensors, {}
    for name, canonical in paddle_names(checkpoint.config).items():
        tensor = tensors[canonical]
        state[name] = tensor.T if tensor.ndim == 2 else tensor
    for layer in range(checkpoint.config.layers):
        path = f"layers.{layer}.self_attn"
        for leaf, packed in (("weight", "in_proj_weight"), ("bias", "in_proj_bias")):
            parts = [state.pop(f"{path}.{part}.{leaf}") for part in ("q_proj", "k_proj", "v_proj")]
            state[f"{path}.{packed}"] = np.concatenate(parts)
    return {name: torch.from_numpy(tensor.copy()) for name, tensor in state.items()}
