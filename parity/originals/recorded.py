"""Recorded originals: inputs and outputs in an ``.npz`` file, for models that no library here runs."""

from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from triglot.parity.output_names import API, ATTEND, AVERAGED_WEIGHTS, ENCODE, FORWARD
from triglot.shared.arrays import Array
from triglot.shared.choices import DTYPES
from triglot.shared.errors import InputError
from triglot.shared.inputs import Batch, batch_in, read_arrays
from triglot.shared.model.config import Head, ModelConfig

# The names of outputs in transformers, and ours.
_ENCODED = ("last_hidden_state", "encode")
_NAMES = {"pooler_output": "pooler"}
_OUTPUTS = {*_ENCODED, *_NAMES, "logits", "forward", "attend", "weights", *get_args(Head)}


@dataclass(frozen=True)
class Example:
    """Inputs in the file ``path``, and the outputs of the original, under the names of our public methods."""

    path: Path
    batch: Batch
    outputs: dict[str, Array]

    @property
    def dtype(self) -> str:
        """The number format in which the original computed."""
        return str(next(iter(self.outputs.values())).dtype)


def read_example(config: ModelConfig, path: Path) -> Example:
    """Read an example of the model ``config`` from an ``.npz`` file.

    It holds the inputs as ``inputs.read_batch`` takes them, and one output or more: ``last_hidden_state`` or
    ``encode``, ``pooler_output``, ``logits``, the names of heads, ``forward`` of an encoder-decoder, ``attend`` of
    attention alone. Outputs of heads that the port does not have are ignored.

    Raises:
        InputError: the file cannot be read, has no output, or does not fit the model.
    """
    arrays = read_arrays(path)
    inputs = {name: array for name, array in arrays.items() if name not in _OUTPUTS}
    methods = {name: method for name in arrays.keys() & _OUTPUTS if (method := _method(name, config))}
    outputs = {method: arrays[name] for name, method in methods.items()}
    if not outputs:
        raise InputError(
            f"{path} holds no output of the original; expected last_hidden_state, pooler_output, logits or the names "
            f"of heads ({', '.join(config.heads_on_top) or 'this model has none'}) beside the inputs"
        )
    if len(outputs) < len(methods):
        raise InputError(f"{path} holds the same output under two of the names {', '.join(methods)}; keep one of them")
    dtypes = {str(output.dtype) for output in outputs.values()}
    if len(dtypes) > 1 or not dtypes <= {*DTYPES}:
        raise InputError(
            f"the outputs in {path} have the dtypes {', '.join(sorted(dtypes))}; expected one of {', '.join(DTYPES)}, "
            "the same for all"
        )
    return Example(path, batch_in(config, path, inputs), outputs)


def _method(name: str, config: ModelConfig) -> str:
    """Return the public method that returns the array called ``name``; empty if it is not an output."""
    if name in _ENCODED:
        return ENCODE
    if config.kind == "encoder_decoder":
        return FORWARD if name in ("forward", "logits", *config.heads_on_top) else ""
    if config.kind == "attention":
        return {"attend": ATTEND, "weights": AVERAGED_WEIGHTS}.get(name, "")
    head = _NAMES.get(name, name)
    if name == "logits":  # of the only head that is not a pooler
        others = [head for head in config.heads_on_top if head != "pooler"]
        head = others[0] if len(others) == 1 else ""
    return f"{API}.heads.{head}" if head in config.heads_on_top else ""
