"""The programs of a model, run as they are written or compiled.

"eager": operation by operation. "jit": compiled by the framework at the first call; weights may change, and gradients
flow. "compiled": compiled for deployment, the fastest mode; weights must not change afterwards. For encoders on a CPU,
the frameworks have other programs, which skip padding: ``encode`` and ``run`` in mode "compiled", the loss in "jit".

Every program takes the arrays of a batch by name (``Batch.arrays``).

Shapes: B batch, S source length, T target length, D hidden size.
"""

import os
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from triglot.shared.errors import FrameworkError
from triglot.shared.model.probe import Probe

from . import masks
from .transformer import Transformer

SHAPES = 64  # a program is compiled for at most this many shapes; one more is an error


def encode(transformer: Transformer, inputs: Mapping[str, Tensor]) -> Tensor:
    """Return the output of the encoder, (B, S, D)."""
    return transformer.encode(inputs["source"], inputs["valid"], inputs.get("segment_ids"), inputs.get("task_ids"))


def run(transformer: Transformer, inputs: Mapping[str, Tensor], probe: Probe | None = None) -> tuple[Tensor, Any]:
    """Return output and heads; for a model that is attention alone, output and averaged weights."""
    if transformer.config.kind == "attention":
        allowed = masks.combine(masks.padding(inputs["valid"]), inputs["allowed"])
        vectors = inputs["query"], inputs["key"], inputs["value"]
        return transformer.attend(*vectors, allowed, inputs["bias"], probe)
    source = inputs["source"], inputs["valid"], inputs.get("segment_ids"), inputs.get("task_ids")
    return transformer(*source, inputs.get("target"), inputs.get("target_valid"), probe)


def trace(
    transformer: Transformer, inputs: Mapping[str, Tensor], replacements: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return every named value. The model continues with the replacement of a value, if there is one."""
    probe = Probe(replacements, copy=torch.clone)
    run(transformer, inputs, probe)
    return probe.record


def in_mode(mode: str, program: Callable[..., Any], transformer: Transformer) -> Callable[..., Any]:
    """Return ``program`` bound to ``transformer``, compiled if the mode says so.

    Raises:
        FrameworkError: the framework lacks a compiler, or this mode.
    """
    if mode == "eager":
        return partial(program, transformer)
    if shutil.which(os.environ.get("CXX", "g++")) is None:
        raise FrameworkError(f"PyTorch: mode {mode!r} needs a C++ compiler; install g++, or choose mode 'eager'")
    # Without these options, a part that cannot be compiled, or one shape too many, would silently run eagerly.
    strict: dict[str, Any] = {"fullgraph": True, "isolate_recompiles": True, "recompile_limit": SHAPES}
    try:
        return torch.compile(partial(program, transformer), options={"freezing": mode == "compiled"}, **strict)
    except TypeError as error:
        raise FrameworkError(
            f"PyTorch: torch.compile of version {torch.__version__} lacks an option that mode {mode!r} needs; install "
            "torch==2.13.0, or choose mode 'eager'"
        ) from error
