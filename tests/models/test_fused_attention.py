"""PyTorch's encoder for a GPU. It computes the same on a CPU, where these tests run it."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from tiny_configs import BERT_WITH_HEADS, TRANSLATION

import triglot
from triglot.impls.pytorch import backend as torch_backend
from triglot.impls.pytorch import execution, fused
from triglot.impls.pytorch.attention import MultiHeadAttention
from triglot.parity.outputs import ForwardTruth
from triglot.shared import inputs

NO_BIAS = {"projection_bias": False, "output_bias": False, "key_size": 5, "attention_output_activation": "relu"}


@pytest.mark.long(fields=NO_BIAS)
@pytest.mark.parametrize("fields", [{}, NO_BIAS], ids=["BERT", "no biases, key size 5, relu"])
def test_fused_attention_is_right(fields):
    checkpoint = triglot.initialize(replace(BERT_WITH_HEADS, **fields))
    batch = inputs.random_batch(checkpoint.config, [13, 9, 1, 13], np.random.default_rng(0))
    assert isinstance(batch, inputs.EncoderBatch)
    valid = batch.valid.copy()
    valid[1], valid[3, [0, 6]] = valid[1, ::-1], False  # padding at the left, and inside
    batch = replace(batch, valid=valid)
    backend = triglot.build("torch", checkpoint).backend
    transformer = fused.with_fused_attention(backend.transformer)
    program = torch.compile(partial(execution.run, transformer), fullgraph=True, backend="aot_eager")
    with backend.computing("forward"):
        output, heads = program({name: backend.to_tensor(array) for name, array in batch.arrays().items()})
    results = {name: backend.to_numpy(tensor) for name, tensor in {"output": output, **heads}.items()}
    assert ForwardTruth(checkpoint, batch, "float32").judge(results).verdict == "pass"


def test_a_compiled_encoder_on_a_gpu_is_fused(monkeypatch):
    """But the original, which shows every value, is not."""
    compiled = []
    monkeypatch.setattr(torch_backend, "can_pack", lambda *_: False)
    monkeypatch.setattr(torch_backend, "can_fuse", lambda config, device, dtype: True)
    monkeypatch.setattr(torch_backend, "in_mode", lambda mode, program, transformer: compiled.append(transformer))
    backend = triglot.build("torch", triglot.initialize(BERT_WITH_HEADS), mode="compiled").backend
    encode, run, _ = compiled
    assert encode is run
    assert {type(layer.attention) for layer in run.encoder.layers} == {fused.FusedAttention}
    assert {type(layer.attention) for layer in backend.transformer.encoder.layers} == {MultiHeadAttention}


def test_only_encoders_in_16_bits_on_a_gpu_are_fused():
    fill = replace(BERT_WITH_HEADS, masking="fill", masking_value=-1e9)
    assert fused.can_fuse(BERT_WITH_HEADS, "cuda", "bfloat16")
    assert fused.can_fuse(BERT_WITH_HEADS, "cuda", "float16")
    others = [(BERT_WITH_HEADS, "cpu", "bfloat16"), (BERT_WITH_HEADS, "cuda", "float32"), (fill, "cuda", "bfloat16")]
    assert not any(fused.can_fuse(*each) for each in [*others, (TRANSLATION, "cuda", "bfloat16")])
