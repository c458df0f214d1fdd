"""A checkpoint of attention alone."""

import pytest
from attention_inputs import CONFIG

from triglot.shared.checkpoint import Checkpoint


@pytest.fixture
def sharp_attention(make_checkpoint):
    """A checkpoint whose attention is sharp and whose biases are not zero."""
    made = make_checkpoint(CONFIG)
    return Checkpoint(CONFIG, {name: tensor * 2 for name, tensor in made.tensors.items()})
