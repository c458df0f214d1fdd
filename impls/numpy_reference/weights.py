"""Between canonical weights and the attributes of the reference.

The attribute paths are the canonical names, and the layouts are the canonical ones.
"""

import numpy as np

from ...shared import schema
from ...shared.checkpoint import Checkpoint
from .transformer import Transformer


def load(transformer: Transformer, checkpoint: Checkpoint, dtype: np.dtype) -> None:
    """Put the tensors of ``checkpoint`` in place of the parameters, strictly: all of them and no others."""
    for name in schema.parameters(checkpoint.config):
        path, attribute = name.rsplit(".", 1)
        module = _module(transformer, path)
        assert getattr(module, attribute).shape == checkpoint.tensors[name].shape, name
        setattr(module, attribute, np.asarray(checkpoint.tensors[name], dtype))


def export(transformer: Transformer) -> dict[str, np.ndarray]:
    """The parameters by canonical name, in canonical layout."""
    weights = {}
    for name in schema.parameters(transformer.config):
        path, attribute = name.rsplit(".", 1)
        weights[name] = getattr(_module(transformer, path), attribute).copy()
    return weights


def _module(transformer: Transformer, path: str) -> object:
    module: object = transformer
    for part in path.split("."):
        module = module[int(part)] if isinstance(module, list) else getattr(module, part)
    return module
