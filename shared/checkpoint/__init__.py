"""The neutral checkpoint: one configuration and its tensors in one .npz file."""

from .checkpoint import Checkpoint, Verify, check_finite, check_target, load, save
from .text import Similarity, TextSettings

__all__ = ["Checkpoint", "Similarity", "TextSettings", "Verify", "check_finite", "check_target", "load", "save"]
