"""Originals in our own modules: the state of a ``Transformer``, loaded as the framework loads any state.

The module reads its own names and layout, without the neutral checkpoint in between.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from triglot import impls
from triglot.parity.jobs import call_methods
from triglot.parity.originals import Original
from triglot.shared.arrays import Array
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.errors import PortingError
from triglot.shared.inputs import Batch
from triglot.shared.model.initializers import initialize
from triglot.shared.porting import containers


def run(original: Original, batches: Sequence[Batch], dtype: str) -> list[dict[str, Array]]:
    """Return the results of the model for each batch; see ``originals``."""
    framework, load = _FRAMEWORKS[original.dialect]
    random = Checkpoint(original.config, initialize(original.config, 0))
    model = impls.build(framework, random, dtype=dtype)
    # Read with our own reader, because it opens all formats and never unpickles.
    load(model.transformer, {name: np.array(each, dtype) for name, each in containers.read(original.path).items()})
    return [call_methods(model, batch) for batch in batches]


def _load_torch(transformer: Any, tensors: Mapping[str, Array]) -> None:
    import torch  # noqa: PLC0415

    transformer.load_state_dict({name: torch.from_numpy(tensor) for name, tensor in tensors.items()})


def _load_paddle(transformer: Any, tensors: Mapping[str, Array]) -> None:
    missing, unexpected = transformer.set_state_dict(tensors)
    if missing or unexpected:
        raise PortingError(f"the module misses {missing} and does not expect {unexpected}; port the file again")


def _load_nnx(transformer: Any, tensors: Mapping[str, Array]) -> None:
    from flax import nnx  # noqa: PLC0415

    parameters = {
        ".".join(map(str, path)): (path, value) for path, value in nnx.to_flat_state(nnx.state(transformer, nnx.Param))
    }
    wrong = sorted(parameters.keys() ^ tensors.keys())
    wrong += [name for name in parameters.keys() & tensors.keys() if parameters[name][1].shape != tensors[name].shape]
    if wrong:  # nnx.update takes anything
        raise PortingError(f"the module and the file differ in {', '.join(wrong[:6])}; port the file again")
    state = [(path, nnx.Param(tensors[name])) for name, (path, _) in parameters.items()]
    nnx.update(transformer, nnx.from_flat_state(state))


_FRAMEWORKS: dict[str, tuple[str, Callable[[Any, Mapping[str, Array]], None]]] = {
    "torch": ("torch", _load_torch),
    "paddle": ("paddle", _load_paddle),
    "nnx": ("jax", _load_nnx),
}
