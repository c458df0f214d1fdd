"""PyTorch's encoder for a GPU. It computes the same on a CPU, where these tests run it."""

from dataclasses import replace

import numpy as np
import pytest

import triglot
from triglot.impls.pytorch import execution, fused
from triglot.parity.outputs import ForwardTruth
from triglot.shared import inputs
from triglot.shared.model.recipes import recipe

CONFIG = replace(recipe("bert-base-tiny"), heads_on_top=("pooler", "masked_lm"), tied_embeddings=True)
NO_BIAS = {"projection_bias": False, "output_bias": False, "key_size": 5, "attention_output_activation": "relu"}


@pytest.mark.parametrize("fields", [{}, NO_BIAS], ids=["BERT", "no biases, key size 5, relu"])
def test_fused_attention_is_right(fields):
    checkpoint = triglot.initialize(replace(CONFIG, **fields))
    batch = inputs.random_batch(checkpoint.config, [13, 9, 1, 13], np.random.default_rng(0))
    assert isinstance(batch, inputs.EncoderBatch)
    backend = triglot.build("torch", checkpoint).backend
    transformer = fused.with_fused_attention(backend.transformer)
    with backend.computing("forward"):
        output, heads = execution.run(transformer, {k: backend.to_tensor(v) for k, v in batch.arrays().items()})
    results = {name: backend.to_numpy(tensor) for name, tensor in {"output": output, **heads}.items()}
    report = ForwardTruth(checkpoint, batch, "float32").judge(results)
    assert report.verdict == "pass"


def test_only_encoders_on_a_gpu_are_fused():
    translation = recipe("translation-tiny")
    fusable = [
        (CONFIG, "cuda"),
        (CONFIG, "cpu"),
        (replace(CONFIG, masking="fill", masking_value=-1e9), "cuda"),
        (translation, "cuda"),
    ]
    assert [fused.can_fuse(*each) for each in fusable] == [True, False, False, False]
