"""The neutral checkpoint: one configuration and its tensors in one .npz file."""

from .checkpoint import Checkpoint, Verify, check_finite, check_target, load, save

__all__ = ["Checkpoint", "Verify", "check_finite", "check_target", "load", "save"]
