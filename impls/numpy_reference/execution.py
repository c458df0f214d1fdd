"""How a model is run: as it is written, or compiled.

"eager": operation by operation. "jit": compiled by the framework when it is first called; weights may change, and
gradients flow. "compiled": compiled to be deployed, the fastest there is; the weights are part of it.

Shapes: B batch, S source length, T target length, D hidden size.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from triglot.shared.arrays import Array
from triglot.shared.errors import FrameworkError
from triglot.shared.model.probe import Probe

from . import masks
from .transformer import Transformer


def encode(transformer: Transformer, given: Mapping[str, Array]) -> Array:
    """The output of the encoder, (B, S, D). given: a batch by name."""
    return transformer.encode(given["source"], given["valid"], given.get("segment_ids"), given.get("task_ids"))


def run(transformer: Transformer, given: Mapping[str, Array], probe: Probe | None = None) -> tuple[Array, Any]:
    """Output and heads, or, of a model that is attention alone, output and averaged weights."""
    if transformer.config.kind == "attention":
        allowed = masks.combine(masks.padding(given["valid"]), given["allowed"])
        vectors = given["query"], given["key"], given["value"]
        return transformer.attend(*vectors, allowed, given["bias"], probe)
    source = given["source"], given["valid"], given.get("segment_ids"), given.get("task_ids")
    return transformer(*source, given.get("target"), given.get("target_valid"), probe)


def trace(transformer: Transformer, given: Mapping[str, Array], replacements: Mapping[str, Array]) -> dict[str, Array]:
    """Every named value; the model goes on with what replaces it."""
    probe = Probe(replacements)
    run(transformer, given, probe)
    return probe.record


def in_mode(mode: str, program: Callable[..., Any], transformer: Transformer) -> Callable[..., Any]:
    """``program`` with its first argument given: ``transformer``.

    Raises:
        FrameworkError: there is no compiler, or no such mode.
    """
    if mode == "eager":
        return partial(program, transformer)
    raise FrameworkError(f"NumPy: the reference is never compiled, so there is no mode {mode!r}; choose mode 'eager'")
