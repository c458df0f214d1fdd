"""The neutral checkpoint: one configuration and its tensors, in one .npz file or in a folder of several."""

from .checkpoint import Checkpoint, Verify, check_finite, check_finite_tensor, check_target, load, save
from .shards import parse_size
from .text import Similarity, TextSettings

__all__ = [
    "Checkpoint",
    "Similarity",
    "TextSettings",
    "Verify",
    "check_finite",
    "check_finite_tensor",
    "check_target",
    "load",
    "parse_size",
    "save",
]
