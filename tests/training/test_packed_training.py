"""Training on packed tokens in mode ``jit`` on a CPU."""

import importlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tiny_configs import BERT_WITH_HEADS, VECTORS

import triglot
from triglot.impls import PACKAGES
from triglot.parity import gradients as judged
from triglot.parity.output_names import name_gradients
from triglot.shared import inputs
from triglot.shared.inputs.packing import pack
from triglot.shared.training.dropout_masks import draw_dropout_masks
from triglot.shared.training.plan import Plan


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


@pytest.mark.long
def test_jax_compiles_nothing_for_gradients_of_a_similar_batch(make_checkpoint):
    """All batches fall into one bucket, but each needs a different number of windows of each length.

    Only a longest row in another range, of up to 32 or 128 tokens, needs another program.
    """
    from triglot.impls.flax_nnx import training

    model, generator = triglot.build("jax", make_checkpoint("bert-base-tiny"), mode="jit"), np.random.default_rng(0)
    derive: Any = training._derive
    compiled = []
    for lengths in ([24, 20, 3, 1], [17, 17, 10, 1, 1], [31, 11, 5], [33, 9, 5], [24, 20, 3, 1]):
        batch = inputs.random_batch(model.config, lengths, generator)
        vectors = generator.standard_normal((*batch.valid.shape, model.config.hidden_size))
        model.loss_and_gradients(inputs.taught(model.config, batch, vectors))
        compiled.append(derive._cache_size())
    first = compiled[0]
    assert first > 0
    assert compiled == [first, first, first, first + 1, first + 1]


WITHOUT_SPARES = [13, 9, 9, 9, 9, 9, 2, 1, 35]  # 96 tokens; PyTorch adds no spare ones


@pytest.mark.parametrize(
    ("config", "lengths"),
    [
        pytest.param(BERT_WITH_HEADS, None, id="tokens"),
        pytest.param(BERT_WITH_HEADS, WITHOUT_SPARES, id="no spare tokens"),
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
