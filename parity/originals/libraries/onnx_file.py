"""Originals in ONNX Runtime: an encoder that was exported with the names of transformers or of Triglot."""

from collections.abc import Sequence

import numpy as np
import onnxruntime

from triglot.parity.originals import Original
from triglot.parity.originals.recorded import method_of
from triglot.parity.output_names import ENCODE
from triglot.shared.arrays import Array
from triglot.shared.errors import InputError
from triglot.shared.inputs import Batch
from triglot.shared.model.schema import OUTPUT

_INPUTS = {
    "input_ids": "source",
    "attention_mask": "valid",
    "token_type_ids": "segment_ids",
    "task_type_ids": "task_ids",
    "token_ids": "source",
    **{name: name for name in ("source", "valid", "segment_ids", "task_ids")},
}
_DTYPES = {
    "tensor(int64)": "int64",
    "tensor(int32)": "int32",
    "tensor(bool)": "bool",
    "tensor(float)": "float32",
    "tensor(double)": "float64",
}


def run(original: Original, batches: Sequence[Batch], dtype: str) -> list[dict[str, Array]]:
    """Return the results of the model for each batch; see ``originals``. The file decides the dtype.

    Raises:
        InputError: the file has other inputs than an encoder, no output that Triglot knows, an ambiguous output, or
            another number format than float32 and float64.
    """
    if original.config.kind != "encoder":
        raise InputError(
            f"{original.path}: cannot run a model of kind {original.config.kind!r} from ONNX; expected an encoder"
        )
    session = onnxruntime.InferenceSession(str(original.path), providers=["CPUExecutionProvider"])
    if unknown := [entry.name for entry in session.get_inputs() if entry.name not in _INPUTS]:
        raise InputError(
            f"{original.path} reads {', '.join(unknown)}; expected inputs called {', '.join(dict.fromkeys(_INPUTS))}"
        )
    entries = [*session.get_inputs(), *session.get_outputs()]
    if types := sorted({entry.type for entry in entries} - _DTYPES.keys()):
        raise InputError(
            f"{original.path} has inputs or outputs of type {', '.join(types)}; expected {', '.join(_DTYPES)}, because "
            "16 bits hide a wrong epsilon or activation; export the model in float32"
        )
    names = {entry.name: method for entry in session.get_outputs() if (method := _method(entry.name, original))}
    if not names:
        outputs = [entry.name for entry in session.get_outputs()]
        raise InputError(f"{original.path} returns {', '.join(outputs)}; expected last_hidden_state or pooler_output")
    return [_run(session, names, batch) for batch in batches]


def _method(output: str, original: Original) -> str:
    """Return the public method that returns an output; empty if none does. Triglot's own exports use ``OUTPUT``."""
    return ENCODE if output == OUTPUT else method_of(output, original.config, original.path)


def _run(session: onnxruntime.InferenceSession, names: dict[str, str], batch: Batch) -> dict[str, Array]:
    arrays = batch.arrays()
    zeros = np.zeros(batch.valid.shape, np.int64)  # a model may read segments that its configuration does not have
    feed = {
        entry.name: arrays.get(_INPUTS[entry.name], zeros).astype(_DTYPES[entry.type]) for entry in session.get_inputs()
    }
    values = session.run(list(names), feed)
    return {method: np.asarray(value) for method, value in zip(names.values(), values, strict=True)}
