"""The state of Triglot's own modules: loaded into the bare module, without the facade, as docs/porting.md shows it."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from noise import random_batch
from safetensors.numpy import load_file

import triglot
from triglot.shared.errors import PortingError
from triglot.shared.model.recipes import recipe, recipes

SUFFIXES = {"torch": ".pt", "paddle": ".pdparams", "jax": ".safetensors"}
DIALECTS = {"torch": "torch", "paddle": "paddle", "jax": "nnx"}
# An encoder-decoder that reads vectors, without a head.
VECTORS = replace(recipe("dygraph-tiny"), kind="encoder_decoder", decoder_layers=3, target_max_length=23)
TINY = [name for name in recipes() if name.endswith("-tiny")]


def bare_module(framework, config, path) -> Any:
    """Return the module with the weights of a file."""
    if framework == "torch":
        import torch

        from triglot.impls.pytorch.transformer import Transformer

        module = Transformer(config)
        module.load_state_dict(torch.load(path, weights_only=True))
        return module.eval()
    if framework == "paddle":
        import paddle

        from triglot.impls.paddlepaddle.transformer import Transformer as PaddleTransformer

        layer = PaddleTransformer(config)
        assert layer.set_state_dict(paddle.load(str(path))) == ([], [])
        layer.eval()
        return layer
    from flax import nnx

    from triglot.impls.flax_nnx.transformer import Transformer as NnxTransformer

    model = NnxTransformer(config, rngs=nnx.Rngs(0))
    tensors = load_file(path)
    state = nnx.state(model, nnx.Param)
    values = {path: tensors.pop(".".join(map(str, path))) for path, _ in nnx.to_flat_state(state)}
    assert not tensors
    nnx.update(model, nnx.from_flat_state([(path, nnx.Param(value)) for path, value in values.items()]))
    model.eval()
    return model


def encode(framework, module, batch):
    if framework == "torch":
        import torch

        with torch.no_grad():
            return module.encode(*map(torch.from_numpy, (batch.source, batch.valid, batch.segment_ids))).numpy()
    if framework == "paddle":
        import paddle

        return module.encode(*map(paddle.to_tensor, (batch.source, batch.valid, batch.segment_ids))).numpy()
    from jax import numpy as jnp

    return np.asarray(module.encode(*map(jnp.asarray, (batch.source, batch.valid, batch.segment_ids))))


def test_the_bare_module_computes_what_the_facade_computes(framework, make_checkpoint, tmp_path):
    checkpoint, path = make_checkpoint("bert-base-tiny"), tmp_path / f"model{SUFFIXES[framework]}"
    triglot.port(checkpoint, path, target_dialect=DIALECTS[framework])
    batch = random_batch(checkpoint.config, (7, 3))
    found = encode(framework, bare_module(framework, checkpoint.config, path), batch)
    expected = triglot.build(framework, checkpoint).encode(batch.source, batch.valid, batch.segment_ids)
    np.testing.assert_allclose(found, expected, rtol=0, atol=4 * 2.0**-24 * np.abs(expected).max())


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("suffix", [".pt", ".safetensors", ".pdparams", ".npz"])
def test_every_recipe_survives_the_way_there_and_back(name, suffix, framework, make_checkpoint, tmp_path):
    checkpoint, path, dialect = make_checkpoint(name), tmp_path / f"model{suffix}", DIALECTS[framework]
    triglot.port(checkpoint, path, target_dialect=dialect)
    assert triglot.port(path, source_dialect=dialect, config=name).digest == checkpoint.digest


@pytest.mark.parametrize("name", [*TINY, "vectors"])
def test_sizes_and_heads_show_in_the_tensors(name, framework, make_checkpoint, tmp_path):
    config, path = VECTORS if name == "vectors" else recipe(name), tmp_path / f"model{SUFFIXES[framework]}"
    triglot.port(make_checkpoint(config), path, target_dialect=DIALECTS[framework])
    shown = {
        "layers",
        "decoder_layers",
        "hidden_size",
        "key_size",
        "value_size",
        "feed_forward_size",
        "segments",
        "tasks",
    }
    shown |= {"kind", "heads_on_top", "tied_embeddings", "shared_embeddings", "source_vocabulary", "target_vocabulary"}
    shown |= {"source_max_length"} if config.positions == "learned" else set()
    given = {field: value for field, value in config.to_dict().items() if field not in shown}
    assert triglot.port(path, config=given, source_dialect=DIALECTS[framework]).config == config


def test_what_no_tensor_shows_is_asked_for(framework, make_checkpoint, tmp_path):
    path = tmp_path / f"model{SUFFIXES[framework]}"
    triglot.port(make_checkpoint("bert-base-tiny"), path, target_dialect=DIALECTS[framework])
    dialect = DIALECTS[framework]
    asked = "heads, activation, norm_eps, masking, positions, pre_process, post_process, final_process, "
    hidden = "pooler_activation, embedding_scale, embedding_process, position_offset, positions_skip_padding, "
    hidden += "attention_output_activation"
    with pytest.raises(PortingError, match=f"do not show {asked}{hidden}; add --set heads=NUMBER"):
        triglot.port(path, source_dialect=dialect)
    fields = recipe("bert-base-tiny").to_dict()
    given = {name: fields[name] for name in f"{asked}{hidden}".split(", ")}
    assert triglot.port(path, source_dialect=dialect, config=given).config.pooler_activation == "tanh"
    filled = {**given, "masking": "fill"}
    with pytest.raises(PortingError, match="do not show masking_value; add"):
        triglot.port(path, source_dialect=dialect, config=filled)


def test_a_port_says_how_to_read_its_file_again(command, workplace):
    _, out, _ = command("port", "bert-base-tiny", "out.pt", "--target-dialect", "torch")
    assert "the target does not store the configuration; pass --config bert-base-tiny when you read it" in " ".join(
        out.split()
    )
    assert command("port", "out.pt", "copy.npz", "--source-dialect", "torch", "--config", "bert-base-tiny")[0] == 0
    source, options = "bert-base-tiny", ("--set", "norm_eps=1e-3", "--heads", "none")
    _, out, _ = command("port", source, "out.pt", "--target-dialect", "torch", *options)
    assert "run triglot inspect SOURCE --json config.json" in " ".join(out.split())
    assert command("inspect", source, "--json", "config.json", *options)[0] == 0
    assert command("port", "out.pt", "other.npz", "--source-dialect", "torch", "--config", "config.json")[0] == 0
    config = triglot.load("other.npz").config
    assert (config.norm_eps, config.heads_on_top) == (1e-3, ())


def test_names_that_two_dialects_share_are_not_guessed(make_checkpoint, tmp_path):
    """PyTorch and PaddlePaddle have the same names in other layouts. Their own formats tell them apart."""
    checkpoint, path = make_checkpoint("bert-base-tiny"), tmp_path / "model.safetensors"
    triglot.port(checkpoint, path, target_dialect="torch")
    name = re.escape("encoder.layers.0.attention.query.weight")
    with pytest.raises(PortingError, match=rf"may be in the dialect torch or paddle, because it has {name}; name the"):
        triglot.port(path, config="bert-base-tiny")
    for framework in ("torch", "paddle"):
        own: Path = tmp_path / f"model{SUFFIXES[framework]}"
        triglot.port(checkpoint, own, target_dialect=framework)
        assert triglot.port(own, config="bert-base-tiny").digest == checkpoint.digest
