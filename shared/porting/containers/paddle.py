"""State dicts in ``.pdparams`` files, as ``paddle.save`` writes them, read and written without Paddle.

Such a file is a pickle of a dictionary of NumPy arrays. ``pickle_machine.py`` interprets it. An entry named
``StructuredToParameterName@@`` repeats the names. Protocols 2 and 3 cannot hold more than 4 GB, so there Paddle splits
large arrays, and an entry named ``UnpackBigParamInfor@@`` says how to join them (``paddle/framework/io_utils.py``).
Paddle keeps bfloat16 as uint16.
"""

import math
import mmap
import pickle
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from triglot.shared.arrays import BFLOAT16, Array, in_c_order, storable
from triglot.shared.errors import PortingError

from .pickle_machine import DAMAGED, Grammar, Name, RefusalError, dictionary, quoted, run, write_name, write_plain

SAVE_ALONE = "save the state dict alone: paddle.save(model.state_dict(), path)"
_NAMES, _SPLIT = "StructuredToParameterName@@", "UnpackBigParamInfor@@"  # the second one's typing error is Paddle's
_MOST_AXES = 64  # the same limit as NumPy

_MODULES = ("numpy.core.multiarray", "numpy._core.multiarray")  # before and since NumPy 2
_ARRAY, _DTYPE, _ENCODE, _TUPLE = "numpy ndarray", "numpy dtype", "_codecs encode", "builtins tuple"
_RECONSTRUCT = tuple(f"{module} _reconstruct" for module in _MODULES)
_NO_BYTES = "__builtin__ bytes"  # an empty string of bytes in protocol 2
_KIND = re.compile(r"[fiu][1248]|b1")


@dataclass
class _Dtype:
    """A NumPy dtype: its kind and size, and its byte order, which a later instruction sets."""

    kind: str
    order: str = "|"


@dataclass
class _Numbers:
    """An array, which a later instruction sets."""

    array: Array | None = None


def read(path: Path) -> dict[str, Array]:
    """Return the arrays by name, as views of the mapped file. Nothing in the file is run.

    Raises:
        PortingError: the file is damaged, or is anything but a dictionary of arrays.
    """
    try:
        with path.open("rb") as file:
            content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError) as error:  # ValueError: the file is empty
        reason = error.strerror if isinstance(error, OSError) else "it is empty"
        raise PortingError(f"cannot read {path}: {reason}; restore it, or change its permissions") from error
    try:
        return _arrays(dictionary(run(content, _GRAMMAR)))
    except RefusalError as error:
        raise PortingError(f"cannot read {path}: {error}") from error
    except (LookupError, TypeError, ValueError) as error:  # a damaged list of parts
        raise PortingError(f"cannot read {path}: {DAMAGED}") from error


def write(file: BinaryIO, tensors: Mapping[str, Array]) -> None:
    """Write a file that ``paddle.load`` reads, in protocol 4, with one array in memory at a time."""
    file.write(pickle.PROTO + b"\x04" + pickle.EMPTY_DICT)
    for name, tensor in tensors.items():
        data = in_c_order(storable(tensor))
        file.write(_text(name) + _header(data) + pickle.BINBYTES8 + struct.pack("<Q", data.nbytes))
        file.write(data.reshape(-1).view(np.uint8).data)
        file.write(pickle.TUPLE + pickle.BUILD + pickle.SETITEM)
    names = b"".join(_text(name) + _text(name) + pickle.SETITEM for name in tensors)
    file.write(_text(_NAMES) + pickle.EMPTY_DICT + names + pickle.SETITEM + pickle.STOP)


def _header(array: Array) -> bytes:
    """Return the instructions for an array up to its numbers."""
    kind = write_name(_DTYPE) + _text(array.dtype.str[1:]) + pickle.NEWFALSE + pickle.NEWTRUE + pickle.TUPLE3
    order = pickle.MARK + b"".join(write_plain(part) for part in (3, "<", None, None, None, -1, -1, 0)) + pickle.TUPLE
    unfilled = write_name(_RECONSTRUCT[0]) + write_name(_ARRAY) + write_plain((0,)) + pickle.SHORT_BINBYTES + b"\x01b"
    return b"".join(
        (
            *(unfilled, pickle.TUPLE3, pickle.REDUCE),
            *(pickle.MARK, write_plain(1), write_plain(array.shape)),
            *(kind, pickle.REDUCE, order, pickle.BUILD, pickle.NEWFALSE),
        )
    )


def _text(text: str) -> bytes:
    content = text.encode()
    return pickle.BINUNICODE + struct.pack("<I", len(content)) + content


def _arrays(state: dict[Any, Any]) -> dict[str, Array]:
    state.pop(_NAMES, None)
    for name, entry in dictionary(state.pop(_SPLIT, {})).items():
        state[name] = _joined(name, dictionary(entry), state)
    arrays: dict[str, Array] = {}
    for name, value in state.items():
        if not isinstance(name, str):
            raise RefusalError(f"its {quoted(name)} is not the name of a tensor; {SAVE_ALONE}")
        arrays[name] = _numbers(name, value)
    return arrays


def _joined(name: str, entry: dict[Any, Any], state: dict[Any, Any]) -> "_Numbers":
    """Return an array that was split into flat parts, which leave ``state``."""
    shape, parts = cast("tuple[int, ...]", entry["OriginShape"]), entry["slices"]
    if name in state or not _is_shape(shape) or not isinstance(parts, list):
        raise RefusalError(DAMAGED)
    arrays = [_numbers(part, state.pop(part)) for part in cast("list[Any]", parts)]
    joined = np.concatenate([array.reshape(-1) for array in arrays])
    if joined.size != math.prod(shape):
        raise RefusalError(f"the parts of {quoted(name)} do not have the size of the whole; restore the file")
    return _Numbers(joined.reshape(shape))


def _numbers(name: str, value: Any) -> Array:
    if not (isinstance(value, _Numbers) and value.array is not None):
        raise RefusalError(f"its {quoted(name)} is a {_word(value)}, expected an array; {SAVE_ALONE}")
    # Paddle stores bfloat16 as uint16, and nothing else.
    return value.array.view(BFLOAT16) if value.array.dtype == np.uint16 else value.array


def _called(function: Any, arguments: Any) -> Any:
    """Return what a call of one of the known functions stands for."""
    match function, arguments:
        case Name(name), (Name(kind), _, _) if name in _RECONSTRUCT and kind == _ARRAY:
            return _Numbers()
        case Name(name), (str(kind), _, _) if name == _DTYPE and _KIND.fullmatch(kind):
            return _Dtype(kind)
        case Name(name), () if name == _NO_BYTES:
            return memoryview(b"")
        case Name(name), (str(text), "latin1") if name == _ENCODE:  # bytes in protocol 2
            return memoryview(text.encode("latin1"))
        case Name(name), ((str(_), _Numbers() as numbers),) if name == _TUPLE:  # a tensor and its name
            return numbers
        case _:
            pass
    raise RefusalError(DAMAGED)


def _build(target: Any, state: Any) -> None:
    """Set the byte order of a dtype, or the content of an array."""
    match target, state:
        case _Dtype(), (_, "<" | ">" | "|" as order, *_):
            target.order = order
        case _Numbers(array=None), (_, shape, _Dtype() as dtype, bool(fortran), content):
            if not _is_shape(shape):
                raise RefusalError(DAMAGED)
            numbers = np.frombuffer(content, dtype.order + dtype.kind)
            native = numbers.astype(numbers.dtype.newbyteorder("="), copy=False)
            target.array = native.reshape(shape, order="F" if fortran else "C")
        case _:
            raise RefusalError(DAMAGED)


def _is_shape(value: Any) -> bool:
    if type(value) is list:
        value = tuple(cast("list[Any]", value))
    if type(value) is not tuple or len(cast("tuple[Any, ...]", value)) > _MOST_AXES:
        return False
    return all(type(size) is int and size >= 0 for size in cast("tuple[Any, ...]", value))


def _word(value: object) -> str:
    words: dict[type, str] = {_Dtype: "dtype", memoryview: "string of bytes", Name: "name"}
    return words.get(type(value), type(value).__name__)


_GRAMMAR = Grammar((*_RECONSTRUCT, _ARRAY, _DTYPE, _ENCODE, _NO_BYTES, _TUPLE), (2, 3, 4), SAVE_ALONE, _called, _build)
