"""Tensors have to be those that the schema of their configuration describes."""

import ml_dtypes
import numpy as np
import pytest
from one_layer_models import BERT

from triglot.shared.arrays import Array
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.errors import CheckpointError
from triglot.shared.model import schema
from triglot.shared.model.initializers import initialize


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
def test_tensors_of_the_schema_are_accepted(dtype):
    tensors = {name: tensor.astype(dtype) for name, tensor in initialize(BERT).items()}
    schema.verify(BERT, tensors)
    assert Checkpoint(BERT, tensors).tensors is tensors


def test_one_message_names_everything_that_is_wrong():
    tensors: dict[str, Array] = {**initialize(BERT)}
    del tensors["embeddings.segment.weight"], tensors["heads.pooler.bias"]
    tensors["embeddings.task.weight"] = np.zeros((3, 24), np.float32)
    tensors["heads.pooler.weight"] = np.zeros((24, 23), np.float32)
    tensors["embeddings.process.norm.bias"] = np.zeros(24, ml_dtypes.float8_e4m3fn)
    tensors["embeddings.process.norm.scale"] = np.zeros((1, 24), np.int32)
    tensors["embeddings.position.weight"] = tensors["embeddings.position.weight"].astype(">f4")
    with pytest.raises(CheckpointError) as error:
        schema.verify(BERT, tensors)
    problems = str(error.value).removeprefix("the tensors do not match the configuration: ").split("; ")
    assert problems == [
        "missing embeddings.segment.weight (2, 24)",
        "missing heads.pooler.bias (24,)",
        "unexpected embeddings.task.weight",
        "embeddings.position.weight has dtype >f4, expected one of float64, float32, float16, bfloat16",
        "embeddings.process.norm.scale has shape (1, 24), expected (24,)",
        "embeddings.process.norm.scale has dtype int32, expected one of float64, float32, float16, bfloat16",
        "embeddings.process.norm.bias has dtype float8_e4m3fn, expected one of float64, float32, float16, bfloat16",
        "heads.pooler.weight has shape (24, 23), expected (24, 24)",
        "give the tensors that the configuration describes, or the configuration of these tensors",
    ]


def test_a_transposed_weight_is_misshapen():
    tensors = initialize(BERT)
    name = "encoder.layers.0.feed_forward.inner.weight"
    tensors[name] = tensors[name].T
    with pytest.raises(CheckpointError, match=rf"{name} has shape \(40, 24\), expected \(24, 40\)"):
        Checkpoint(BERT, tensors)
