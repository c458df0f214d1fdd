"""Dropout masks, drawn in NumPy, so that every framework drops the same numbers."""

from collections.abc import Mapping

import numpy as np

from triglot.shared.arrays import Array, Float32s
from triglot.shared.errors import InputError
from triglot.shared.inputs import Batch
from triglot.shared.model.config import ModelConfig
from triglot.shared.model.schema import Dropout, dropouts


def draw_dropout_masks(config: ModelConfig, batch: Batch, generator: np.random.Generator) -> dict[str, Float32s]:
    """Draw a mask for each dropout of ``config``, by name, of the shape of the value that it multiplies.

    A mask is 0 for the dropped share, and one over the remaining share elsewhere, which preserves the mean ("Dropout",
    Srivastava et al. 2014, section 10; every framework does so).
    """
    sizes = _sizes(config, batch)
    return {name: _mask(dropout, sizes, generator) for name, dropout in dropouts(config).items()}


def check_dropout_masks(config: ModelConfig, batch: Batch, masks: Mapping[str, Array]) -> Mapping[str, Array]:
    """Return the masks if there is one for each dropout of the model, of the shape that the batch implies; or none.

    Raises:
        InputError: a mask is missing, unknown or misshapen, or holds numbers that are not finite.
    """
    if not masks:
        return masks
    shapes = {name: _shape(dropout, _sizes(config, batch)) for name, dropout in dropouts(config).items()}
    if wrong := sorted(shapes.keys() ^ masks.keys()):
        kind = "unknown" if wrong[0] in masks else "missing"
        raise InputError(f"dropout_masks: {wrong[0]} is {kind}; pass one mask for each dropout of the model")
    for name, shape in shapes.items():
        mask = masks[name]
        if mask.shape != shape or mask.dtype.kind != "f" or not np.isfinite(mask).all():
            raise InputError(f"dropout_masks: {name} is {mask.dtype} {mask.shape}; expected finite numbers {shape}")
    return masks


def _sizes(config: ModelConfig, batch: Batch) -> dict[str, int]:
    return {
        "batch": batch.rows,
        **{axis: tokens.shape[1] for axis, tokens in batch.real_tokens().items()},
        "head": config.heads,
        "hidden": config.hidden_size,
        "embedding": config.embedding_size,
        "feed_forward": config.feed_forward_size,
    }


def _shape(dropout: Dropout, sizes: dict[str, int]) -> tuple[int, ...]:
    return tuple(sizes[axis] for axis in dropout.axes)


def _mask(dropout: Dropout, sizes: dict[str, int], generator: np.random.Generator) -> Float32s:
    stays = generator.random(_shape(dropout, sizes), np.float32) >= dropout.rate
    return stays.astype(np.float32) * np.float32(1 / (1 - dropout.rate))
