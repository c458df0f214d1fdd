"""Recorded originals: inputs and outputs in an ``.npz`` file, for models that no library here runs."""

from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import numpy as np

from triglot.parity.output_names import API, ATTEND, AVERAGED_WEIGHTS, ENCODE, FORWARD
from triglot.shared.arrays import Array, representable
from triglot.shared.errors import InputError
from triglot.shared.inputs import Batch, batch_in, read_arrays
from triglot.shared.model.config import Head, ModelConfig

# The names of outputs in transformers, and ours.
_ENCODED = ("last_hidden_state", "encode")
_NAMES = {"pooler_output": "pooler"}
_VECTORS = ("pooler", "sentence_embedding")  # heads whose results are not called logits
_OUTPUTS = {*_ENCODED, *_NAMES, "logits", "forward", "attend", "weights", *get_args(Head)}


@dataclass(frozen=True)
class Example:
    """Inputs in the file ``path``, and the outputs of the original, under the names of our public methods.

    ``ignored`` names the outputs that the port does not have.
    """

    path: Path
    batch: Batch
    outputs: dict[str, Array]
    ignored: tuple[str, ...]

    @property
    def dtype(self) -> str:
        """The number format in which the original computed."""
        return str(next(iter(self.outputs.values())).dtype)


def read_example(config: ModelConfig, path: Path) -> Example:
    """Read an example of the model ``config`` from an ``.npz`` file.

    It holds the inputs as ``inputs.read_batch`` takes them, and one output or more: ``last_hidden_state`` or
    ``encode``, ``pooler_output``, ``logits``, the names of heads, ``forward`` of an encoder-decoder, ``attend`` of
    attention alone. Outputs that the port does not have are ignored.

    The outputs are in the number format of the run: float32 or float64. 16 bits would hide a wrong epsilon or
    activation. Float64 outputs count as those of a float32 run if float32 represents all of them exactly. It represents
    almost no outputs of a float64 run.

    Raises:
        InputError: the file cannot be read, has no output, or does not fit the model; or an output is ambiguous, or
            not in float32 or float64.
    """
    arrays = read_arrays(path)
    inputs = {name: array for name, array in arrays.items() if name not in _OUTPUTS}
    named = {name: method_of(name, config, path) for name in sorted(arrays.keys() & _OUTPUTS)}
    methods = {name: method for name, method in named.items() if method}
    outputs = _in_format_of_run({method: arrays[name] for name, method in methods.items()})
    if not outputs:
        raise InputError(
            f"{path} holds no output of the original; expected last_hidden_state, pooler_output, logits or the names "
            f"of heads ({', '.join(config.heads_on_top) or 'this model has none'}) beside the inputs"
        )
    if len(outputs) < len(methods):
        raise InputError(f"{path} holds the same output under two of the names {', '.join(methods)}; keep one of them")
    dtypes = {str(output.dtype) for output in outputs.values()}
    if len(dtypes) > 1 or not dtypes <= {"float32", "float64"}:
        raise InputError(
            f"the outputs in {path} have the dtypes {', '.join(sorted(dtypes))}; expected float32 or float64, the same "
            "for all, because 16 bits hide a wrong epsilon or activation; save the float32 outputs of a float32 run"
        )
    ignored = tuple(name for name, method in named.items() if not method)
    return Example(path, batch_in(config, path, inputs), outputs, ignored)


def method_of(name: str, config: ModelConfig, path: Path) -> str:
    """Return the public method that returns the output called ``name`` in ``path``; empty if the port has none.

    Raises:
        InputError: several heads may be meant.
    """
    if config.kind == "attention":
        return {"attend": ATTEND, "weights": AVERAGED_WEIGHTS}.get(name, "")
    if name in _ENCODED:
        return ENCODE
    if config.kind == "encoder_decoder":
        return FORWARD if name in ("forward", "logits", *config.heads_on_top) else ""
    head = _NAMES.get(name, name)
    if name == "logits":  # of the only head whose results are called logits
        others = [head for head in config.heads_on_top if head not in _VECTORS]
        if len(others) > 1:
            raise InputError(f"{path}: logits may be {' or '.join(others)}; name the array after its head")
        head = others[0] if others else ""
    return f"{API}.heads.{head}" if head in config.heads_on_top else ""


def _in_format_of_run(outputs: dict[str, Array]) -> dict[str, Array]:
    """Return the outputs in float32 if they are float32 numbers saved as float64; otherwise as they are."""
    doubles = {method: output for method, output in outputs.items() if output.dtype == np.float64}
    singles = {method: representable(output, "float32") for method, output in doubles.items()}
    exact = all(np.array_equal(singles[method], output, equal_nan=True) for method, output in doubles.items())
    return outputs | singles if exact else outputs
