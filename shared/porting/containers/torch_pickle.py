"""The pickle inside a ``.pt`` file, which lists the tensors. ``pickle_machine.py`` interprets it.

Format: pickle protocol 2 as ``torch/serialization.py`` writes it since PyTorch 1.6.
"""

import pickle
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import numpy as np

from triglot.shared.arrays import BFLOAT16

from .pickle_machine import DAMAGED, Grammar, Name, RefusalError, dictionary, quoted, run, write_name, write_plain

# Ten times the tensors of the deepest Transformers, at 500 bytes and 60 instructions each.
LONGEST = 1 << 23
_MOST_AXES = 64  # the same limit as NumPy

SAVE_ALONE = "save the state dict alone: torch.save(model.state_dict(), path)"

_STORAGES: dict[str, np.dtype[Any]] = {
    "torch DoubleStorage": np.dtype(np.float64),
    "torch FloatStorage": np.dtype(np.float32),
    "torch HalfStorage": np.dtype(np.float16),
    "torch BFloat16Storage": BFLOAT16,
    "torch LongStorage": np.dtype(np.int64),
    "torch IntStorage": np.dtype(np.int32),
    "torch ShortStorage": np.dtype(np.int16),
    "torch CharStorage": np.dtype(np.int8),
    "torch ByteStorage": np.dtype(np.uint8),
    "torch BoolStorage": np.dtype(np.bool_),
}
_STORAGE_NAMES = {dtype: name for name, dtype in _STORAGES.items()}
_DICTIONARY = "collections OrderedDict"
_TENSOR = "torch._utils _rebuild_tensor_v2"
_PARAMETER = "torch._utils _rebuild_parameter"
_CALLS = (_DICTIONARY, _TENSOR, _PARAMETER)


class Storage(NamedTuple):
    """A block of ``numbers`` numbers, stored in the member ``key`` of the archive."""

    key: str
    dtype: np.dtype[Any]
    numbers: int


class Layout(NamedTuple):
    """A tensor as a view of its storage; ``offset`` and ``strides`` count numbers, not bytes."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def read(content: memoryview | bytes) -> dict[str, Layout]:
    """Return the tensors of a state dict by name.

    Raises:
        RefusalError: the pickle is damaged, or is anything but a dictionary of tensors.
    """
    if len(content) > LONGEST:
        raise RefusalError(f"its pickle has {len(content)} bytes, expected at most {LONGEST}; {SAVE_ALONE}")
    value = run(content, _GRAMMAR)
    if not isinstance(value, dict):
        raise RefusalError(f"it holds a {_kind(value)}, expected a state dict; {SAVE_ALONE}")
    for name, tensor in cast("dict[object, object]", value).items():
        if not isinstance(name, str):
            raise RefusalError(f"its {quoted(name)} is not the name of a tensor; {SAVE_ALONE}")
        if not isinstance(tensor, Layout):
            raise RefusalError(f"its {quoted(name)} is a {_kind(tensor)}, expected a tensor; {SAVE_ALONE}")
    return cast("dict[str, Layout]", value)


def _storage(value: Any) -> Storage:
    """Return the storage that ``("storage", class, key, device, count)`` describes."""
    match value:
        case ("storage", Name(name), str(key), _, count) if type(value) is tuple and _is_size(count):
            return Storage(key, _STORAGES[name], count)
        case _:
            raise RefusalError(DAMAGED)


def _called(function: Any, arguments: Any) -> Any:
    """Return what a call of one of the three functions in ``_CALLS`` stands for."""
    if isinstance(arguments, list):  # matches the patterns of tuples
        raise RefusalError(DAMAGED)
    match function, arguments:
        case Name(name), () if name == _DICTIONARY:
            return {}
        case Name(name), (Layout() as layout, _, _) if name == _PARAMETER:
            return layout
        case Name(name), (Storage() as storage, offset, shape, strides, _, _) if name == _TENSOR:
            # The last two are requires_grad, and hooks.
            if _is_size(offset) and _are_sizes(shape) and _are_sizes(strides):
                return Layout(storage, offset, shape, strides)
        case _:
            pass
    raise RefusalError(DAMAGED)


def _build(target: Any, state: Any) -> None:
    """Accept the attribute that a state dict may have: the versions of its modules, which do not affect tensors."""
    dictionary(target)
    if set(dictionary(state)) != {"_metadata"}:
        raise RefusalError(f"its dictionary has attributes; {SAVE_ALONE}")


def _is_size(value: Any) -> bool:
    return type(value) is int and value >= 0


def _are_sizes(values: Any) -> bool:
    if type(values) is not tuple or len(cast("tuple[Any, ...]", values)) > _MOST_AXES:
        return False  # before looking at the elements: one long tuple may be used a hundred thousand times
    return all(_is_size(value) for value in cast("tuple[Any, ...]", values))


_GRAMMAR = Grammar((*_STORAGES, *_CALLS), (2,), SAVE_ALONE, _called, _build, _storage)


def _kind(value: object) -> str:
    words: dict[type, str] = {Layout: "tensor", Storage: "storage", Name: "name"}
    return words.get(type(value), type(value).__name__)


def write(layouts: Mapping[str, Layout]) -> bytes:
    """Return the pickle of a state dict. This is the inverse of ``read``."""
    entries = b"".join(write_plain(name) + _tensor(layout) for name, layout in layouts.items())
    return pickle.PROTO + b"\x02" + _empty_dictionary() + pickle.MARK + entries + pickle.SETITEMS + pickle.STOP


def _tensor(layout: Layout) -> bytes:
    key, dtype, count = layout.storage
    storage = (
        write_plain("storage")
        + write_name(_STORAGE_NAMES[dtype])
        + write_plain(key)
        + write_plain("cpu")
        + write_plain(count)
    )
    view = b"".join(write_plain(part) for part in layout[1:])
    hooks = pickle.NEWFALSE + _empty_dictionary()  # requires_grad is False
    arguments = pickle.MARK + storage + pickle.TUPLE + pickle.BINPERSID + view + hooks
    return write_name(_TENSOR) + pickle.MARK + arguments + pickle.TUPLE + pickle.REDUCE


def _empty_dictionary() -> bytes:
    return write_name(_DICTIONARY) + pickle.EMPTY_TUPLE + pickle.REDUCE
