"""Encoders of other libraries on the same weights: they and every framework are within the noise of the reference."""

from dataclasses import replace

import numpy as np
import pytest
from noise import assert_within_noise, random_batch, truth_of

from triglot import impls
from triglot.models import resolve
from triglot.shared import inputs
from triglot.shared.model.recipes import recipe


@pytest.mark.parametrize("wrong", [1e-4, np.nan])
def test_the_comparison_notices_one_wrong_element(wrong, make_checkpoint):
    checkpoint = make_checkpoint("dygraph-tiny")
    truth = truth_of(checkpoint, random_batch(checkpoint.config, [5, 3]))
    output = truth.values["output"].astype(np.float32)
    assert_within_noise({"output": output}, truth)
    output[0, 0, 0] += wrong
    with pytest.raises(AssertionError, match=r"output: .* times the budget"):
        assert_within_noise({"output": output}, truth)


@pytest.fixture(scope="module")
def minilm():
    """The pre-trained MiniLM, a batch of real sentences, and the truth for it."""
    model = resolve("minilm")
    batches, _ = model.batches(4, 8, seed=0)
    return model, batches[0], truth_of(model.checkpoint, batches[0])


@pytest.mark.long
def test_minilm_of_transformers(minilm):
    import torch
    import transformers

    source, batch, truth = minilm
    bert = transformers.BertModel.from_pretrained(source.tokenizer.parent, attn_implementation="eager").eval()
    with torch.inference_mode():
        result = bert(torch.from_numpy(batch.source).long(), attention_mask=torch.from_numpy(batch.valid).long())
    output = np.where(batch.valid[:, :, None], result.last_hidden_state.numpy(), 0)
    assert_within_noise({"output": output, "heads.pooler": result.pooler_output.numpy()}, truth)


def test_minilm_in_every_framework(framework, minilm):
    source, batch, truth = minilm
    model = impls.build(framework, source.checkpoint)
    pooler = model.heads(batch.source, batch.valid)["pooler"]
    assert_within_noise({"output": model.encode(batch.source, batch.valid), "heads.pooler": pooler}, truth)


def run_paddle_nn(checkpoint, batch):
    """Return the output of ``paddle.nn.TransformerEncoder``."""
    import paddle

    config = checkpoint.config
    layer = paddle.nn.TransformerEncoderLayer(
        config.hidden_size,
        config.heads,
        config.feed_forward_size,
        dropout=0.0,
        activation=config.activation,
        normalize_before=True,
        layer_norm_eps=config.norm_eps,
    )
    norm = paddle.nn.LayerNorm(config.hidden_size, epsilon=config.norm_eps)
    encoder = paddle.nn.TransformerEncoder(layer, config.layers, norm)
    encoder.eval()
    state = encoder.state_dict()
    canonical_names = paddle_names(config)
    assert set(canonical_names) == set(state)
    for name, canonical in canonical_names.items():
        state[name].set_value(checkpoint.tensors[canonical])
    bias = np.where(batch.valid[:, None, None, :], 0, -1e4).astype(np.float32)
    with paddle.no_grad():
        return encoder(paddle.to_tensor(batch.source), paddle.to_tensor(bias)).numpy()


def run_torch_nn(checkpoint, batch):
    """Return the output of ``torch.nn.TransformerEncoder``."""
    import torch

    config = checkpoint.config
    layer = torch.nn.TransformerEncoderLayer(
        config.hidden_size,
        config.heads,
        config.feed_forward_size,
        dropout=0.0,
        activation=config.activation,
        layer_norm_eps=config.norm_eps,
        batch_first=True,
        norm_first=True,
    )
    norm = torch.nn.LayerNorm(config.hidden_size, eps=config.norm_eps)
    encoder = torch.nn.TransformerEncoder(layer, config.layers, norm, enable_nested_tensor=False)
    encoder.load_state_dict(torch_state(checkpoint), strict=True)
    with torch.inference_mode():
        padding = torch.from_numpy(~batch.valid)
        return encoder.eval()(torch.from_numpy(batch.source), src_key_padding_mask=padding).numpy()


@pytest.fixture(params=["gelu", "relu"])
def dygraph(request, make_checkpoint):
    """A pre-norm encoder, a batch with padding, and the truth for it."""
    checkpoint = make_checkpoint(replace(recipe("dygraph-tiny"), activation=request.param))
    batch = random_batch(checkpoint.config, [9, 2, 6])
    return checkpoint, batch, truth_of(checkpoint, batch)


@pytest.mark.parametrize("run", [run_paddle_nn, run_torch_nn])
def test_dygraph_of_a_library(run, dygraph):
    checkpoint, batch, truth = dygraph
    assert_within_noise({"output": np.where(batch.valid[:, :, None], run(checkpoint, batch), 0)}, truth)


def test_dygraph_in_every_framework(framework, dygraph):
    checkpoint, batch, truth = dygraph
    assert_within_noise({"output": impls.build(framework, checkpoint).encode(batch.source, batch.valid)}, truth)


@pytest.mark.long(framework="jax")
def test_key_and_value_sizes_that_differ_from_hidden_size_over_heads(framework, make_checkpoint):
    """Key size 5 and value size 7, where D / H is 8. The truth is compared with attention written here in einsum."""
    config = replace(recipe("dygraph-tiny"), layers=1, key_size=5, value_size=7)
    checkpoint = make_checkpoint(config)
    batch = random_batch(config, [6, 4])
    truth = truth_of(checkpoint, batch)
    weights = {name: tensor.astype(np.float64) for name, tensor in checkpoint.tensors.items()}
    x = truth.values["encoder.layers.0.pre_attention.norm"]

    def project(name, size):
        path = f"encoder.layers.0.attention.{name}"
        matrix = weights[f"{path}.weight"].reshape(config.hidden_size, config.heads, size)
        return np.einsum("bsd,dhk->bhsk", x, matrix) + weights[f"{path}.bias"].reshape(config.heads, 1, size)

    query, key, value = project("query", 5), project("key", 5), project("value", 7)
    scores = np.einsum("bhtk,bhsk->bhts", query, key) / np.sqrt(5)
    scores = scores + np.where(batch.valid[:, None, None, :], 0, -1e4)
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
    attention = exponentials / exponentials.sum(axis=-1, keepdims=True)
    projection = weights["encoder.layers.0.attention.output.weight"].reshape(config.heads, 7, config.hidden_size)
    output = np.einsum("bhts,bhsv,hvd->btd", attention, value, projection)
    output = output + weights["encoder.layers.0.attention.output.bias"]
    name = "encoder.layers.0.attention.output"
    # Two orders of the same sums in float64 on values around 1: 1e-14 is 45 units.
    np.testing.assert_allclose(truth.values[name], output, rtol=0, atol=1e-14)
    trace = impls.build(framework, checkpoint).trace(batch)
    assert_within_noise({name: trace[name]}, truth, batch.valid[:, :, None])


def test_sinusoidal_positions(implementation, make_checkpoint):
    config = replace(recipe("bert-base-tiny"), positions="sinusoidal", segments=0)
    checkpoint = make_checkpoint(config)
    ids = np.arange(14).reshape(2, 7)
    batch = inputs.encoder_batch(config, ids)
    embedded = impls.build(implementation, checkpoint, dtype="float32").trace(batch)["embeddings.sum"]
    angles = np.arange(7)[:, None] / 10000.0 ** ((np.arange(24) // 2 * 2) / 24)
    table = np.where(np.arange(24) % 2 == 0, np.sin(angles), np.cos(angles))
    expected = checkpoint.tensors["embeddings.token.weight"][ids] + table
    # One rounding of the table and one of the sum, on numbers below 2.
    np.testing.assert_allclose(embedded, expected, rtol=0, atol=2 * 2.0**-24 * 2)


@pytest.mark.long(implementation="jax")
def test_position_offset_skips_rows(implementation, make_checkpoint):
    config = replace(recipe("bert-base-tiny"), position_offset=2, segments=0)
    checkpoint = make_checkpoint(config)
    ids = np.full((1, config.source_max_length), 3)
    model = impls.build(implementation, checkpoint, dtype="float32")
    embedded = model.trace(inputs.encoder_batch(config, ids))["embeddings.sum"]
    position = checkpoint.tensors["embeddings.position.weight"]
    assert len(position) == config.source_max_length + 2
    np.testing.assert_array_equal(embedded[0], checkpoint.tensors["embeddings.token.weight"][3] + position[2:])


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
    """Return the canonical name for each name of Paddle. Both store linear weights as (in, out)."""
    table = {"norm.weight": "encoder.final.norm.scale", "norm.bias": "encoder.final.norm.bias"}
    for layer in range(config.layers):
        for module, canonical in PADDLE_MODULES.items():
            native_path, path = f"layers.{layer}.{module}", f"encoder.layers.{layer}.{canonical}"
            table |= {f"{native_path}.{leaf}": f"{path}.{leaf}" for leaf in ("weight", "bias")}
        for module, canonical in NORMS.items():
            native_path, path = f"layers.{layer}.{module}", f"encoder.layers.{layer}.{canonical}"
            table |= {f"{native_path}.weight": f"{path}.scale", f"{native_path}.bias": f"{path}.bias"}
    return table


def torch_state(checkpoint):
    """Return the state dict of torch.nn.TransformerEncoder: query, key and value packed, linear weights (out, in)."""
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
