"""Masks of dropout, drawn in NumPy: who is given them drops out the same numbers in every framework."""

import numpy as np

from .activations import Dropout, dropouts
from .arrays import Float32s
from .config import ModelConfig
from .inputs import Batch


def draw_dropout_masks(config: ModelConfig, batch: Batch, generator: np.random.Generator) -> dict[str, Float32s]:
    """For each dropout of ``config`` by name, what its value is multiplied with, of that value's shape.

    0 for the share that is dropped, one over the share that stays for the rest, so that the mean stays what it was
    ("Dropout", Srivastava et al. 2014, section 10, as every framework does it today).
    """
    sizes = {
        "batch": len(batch.valid),
        "source": batch.valid.shape[1],
        "target": batch.target_valid.shape[1],
        "head": config.heads,
        "hidden": config.hidden_size,
        "feed_forward": config.feed_forward_size,
    }
    return {name: _mask(dropout, sizes, generator) for name, dropout in dropouts(config).items()}


def _mask(dropout: Dropout, sizes: dict[str, int], generator: np.random.Generator) -> Float32s:
    stays = generator.random([sizes[axis] for axis in dropout.axes], np.float32) >= dropout.rate
    return stays.astype(np.float32) * np.float32(1 / (1 - dropout.rate))
