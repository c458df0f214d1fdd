"""The pickle inside a ``.pt`` file, interpreted without running it.

A pickle is a program for a small stack machine. It is dangerous because it may import and call anything. The machine
below can do neither: it knows only the instructions that ``torch.save`` needs for a state dict, and treats the names in
``_STORAGES`` and ``_CALLS`` as plain text. Any other instruction or name is refused.

Format: pickle protocol 2 as ``torch/serialization.py`` writes it since PyTorch 1.6.
"""

import io
import pickle
import struct
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

import numpy as np

from triglot.shared.arrays import BFLOAT16

# Ten times the tensors of the deepest Transformers, at 500 bytes and 60 instructions each.
LONGEST = 1 << 23
_MOST_INSTRUCTIONS = 1 << 20
_LONGEST_QUOTE = 80
_MOST_AXES = 64  # the same limit as NumPy

SAVE_ALONE = "save the state dict alone: torch.save(model.state_dict(), path)"
_DAMAGED = "its pickle is damaged; restore the file, or save it again"

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


class RefusalError(Exception):
    """The reason why a pickle is refused, and what to do."""


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


class _Name(NamedTuple):
    """The name of a function or a class. It is compared, never looked up."""

    text: str


def read(content: bytes) -> dict[str, Layout]:
    """Return the tensors of a state dict by name.

    Raises:
        RefusalError: the pickle is damaged, or is anything but a dictionary of tensors.
    """
    if len(content) > LONGEST:
        raise RefusalError(f"its pickle has {len(content)} bytes, expected at most {LONGEST}; {SAVE_ALONE}")
    try:
        value = _Machine(content).run()
    except (LookupError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise RefusalError(_DAMAGED) from error
    if not isinstance(value, dict):
        raise RefusalError(f"it holds a {_kind(value)}, expected a state dict; {SAVE_ALONE}")
    for name, tensor in cast("dict[object, object]", value).items():
        if not isinstance(name, str):
            raise RefusalError(f"its {_quoted(name)} is not the name of a tensor; {SAVE_ALONE}")
        if not isinstance(tensor, Layout):
            raise RefusalError(f"its {_quoted(name)} is a {_kind(tensor)}, expected a tensor; {SAVE_ALONE}")
    return cast("dict[str, Layout]", value)


class _Machine:
    """The stack and the memory of a pickle, and the instructions that are allowed."""

    def __init__(self, content: bytes) -> None:
        self._stream = io.BytesIO(content)
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memory: dict[int, Any] = {}

    def run(self) -> Any:
        push = self._stack.append
        instructions: dict[bytes, Callable[[], None]] = {
            pickle.PROTO: self._protocol,
            pickle.MARK: lambda: self._marks.append(len(self._stack)),
            pickle.NONE: lambda: push(None),
            pickle.NEWTRUE: lambda: push(True),
            pickle.NEWFALSE: lambda: push(False),
            pickle.BININT: lambda: push(self._number("<i")),
            pickle.BININT1: lambda: push(self._number("<B")),
            pickle.BININT2: lambda: push(self._number("<H")),
            pickle.LONG1: lambda: push(int.from_bytes(self._bytes(self._number("<B")), "little", signed=True)),
            pickle.BINFLOAT: lambda: push(self._number(">d")),
            pickle.BINUNICODE: lambda: push(self._bytes(self._number("<I")).decode()),
            pickle.EMPTY_DICT: lambda: push({}),
            pickle.EMPTY_LIST: lambda: push([]),
            pickle.EMPTY_TUPLE: lambda: push(()),
            pickle.TUPLE1: lambda: push(tuple(self._last(1))),
            pickle.TUPLE2: lambda: push(tuple(self._last(2))),
            pickle.TUPLE3: lambda: push(tuple(self._last(3))),
            pickle.TUPLE: lambda: push(tuple(self._since_mark())),
            pickle.APPEND: lambda: self._append(self._last(1)),
            pickle.APPENDS: lambda: self._append(self._since_mark()),
            pickle.SETITEM: lambda: self._set(self._last(2)),
            pickle.SETITEMS: lambda: self._set(self._since_mark()),
            pickle.BINPUT: lambda: self._remember(self._number("<B")),
            pickle.LONG_BINPUT: lambda: self._remember(self._number("<I")),
            pickle.BINGET: lambda: push(self._memory[self._number("<B")]),
            pickle.LONG_BINGET: lambda: push(self._memory[self._number("<I")]),
            pickle.GLOBAL: lambda: push(self._name()),
            pickle.BINPERSID: lambda: push(_storage(*self._last(1))),
            pickle.REDUCE: lambda: push(_called(*self._last(2))),
            pickle.BUILD: lambda: self._build(*self._last(1)),
        }
        for _ in range(_MOST_INSTRUCTIONS):
            code = self._bytes(1)
            if code == pickle.STOP:
                (result,) = self._stack
                return result
            if code not in instructions:
                raise RefusalError(f"its pickle uses the instruction {code!r}, which state dicts lack; {SAVE_ALONE}")
            instructions[code]()
        raise RefusalError(f"its pickle has more than {_MOST_INSTRUCTIONS} instructions; {SAVE_ALONE}")

    def _bytes(self, count: int) -> bytes:
        content = self._stream.read(count)
        if len(content) != count:
            raise RefusalError(_DAMAGED)
        return content

    def _number(self, form: str) -> Any:
        return struct.unpack(form, self._bytes(struct.calcsize(form)))[0]

    def _protocol(self) -> None:
        number = self._number("<B")
        if number != 2:
            raise RefusalError(
                f"its pickle has protocol {number}; expected 2, the default of torch.save; save it again"
            )

    def _last(self, count: int) -> list[Any]:
        if len(self._stack) - (self._marks[-1] if self._marks else 0) < count:
            raise RefusalError(_DAMAGED)
        values = self._stack[-count:]
        del self._stack[-count:]
        return values

    def _since_mark(self) -> list[Any]:
        mark = self._marks.pop()
        values = self._stack[mark:]
        del self._stack[mark:]
        return values

    def _append(self, values: list[Any]) -> None:
        self._stack[-1].extend(values)  # only lists have this method

    def _set(self, values: list[Any]) -> None:
        target = _dictionary(self._stack[-1])
        for key, value in zip(values[::2], values[1::2], strict=True):
            if type(key) not in (str, int):  # hashing a deep tuple overflows the stack of the interpreter
                raise RefusalError(_DAMAGED)
            if key in target:
                raise RefusalError(f"it holds {_quoted(key)} twice; save it again")
            target[key] = value

    def _remember(self, place: int) -> None:
        self._memory[place] = self._stack[-1]  # a dictionary, so a high index costs no more than a low one

    def _name(self) -> _Name:
        module, name = (self._stream.readline().decode().removesuffix("\n") for _ in range(2))
        if (text := f"{module} {name}") not in _STORAGES and text not in _CALLS:
            raise RefusalError(
                f"it names {_quoted(f'{module}.{name}')}, which is not part of a state dict; {SAVE_ALONE}"
            )
        return _Name(text)

    def _build(self, state: Any) -> None:
        """Accept the attribute that a state dict may have: the versions of its modules, which do not affect tensors."""
        _dictionary(self._stack[-1])
        if set(_dictionary(state)) != {"_metadata"}:
            raise RefusalError(f"its dictionary has attributes; {SAVE_ALONE}")


def _dictionary(value: Any) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise RefusalError(_DAMAGED)
    return cast("dict[Any, Any]", value)


def _storage(value: Any) -> Storage:
    """Return the storage that ``("storage", class, key, device, count)`` describes."""
    match value:
        case ("storage", _Name(name), str(key), _, count) if type(value) is tuple and _is_size(count):
            return Storage(key, _STORAGES[name], count)
        case _:
            raise RefusalError(_DAMAGED)


def _called(function: Any, arguments: Any) -> Any:
    """Return what a call of one of the three functions in ``_CALLS`` stands for."""
    if isinstance(arguments, list):  # matches the patterns of tuples
        raise RefusalError(_DAMAGED)
    match function, arguments:
        case _Name(name), () if name == _DICTIONARY:
            return {}
        case _Name(name), (Layout() as layout, _, _) if name == _PARAMETER:
            return layout
        case _Name(name), (Storage() as storage, offset, shape, strides, _, _) if name == _TENSOR:
            # The last two are requires_grad, and hooks.
            if _is_size(offset) and _are_sizes(shape) and _are_sizes(strides):
                return Layout(storage, offset, shape, strides)
        case _:
            pass
    raise RefusalError(_DAMAGED)


def _is_size(value: Any) -> bool:
    return type(value) is int and value >= 0


def _are_sizes(values: Any) -> bool:
    if type(values) is not tuple or len(cast("tuple[Any, ...]", values)) > _MOST_AXES:
        return False  # before looking at the elements: one long tuple may be used a hundred thousand times
    return all(_is_size(value) for value in cast("tuple[Any, ...]", values))


def _kind(value: object) -> str:
    words: dict[type, str] = {Layout: "tensor", Storage: "storage", _Name: "name"}
    return words.get(type(value), type(value).__name__)


def _quoted(name: object) -> str:
    """Return a name from a file, shortened for a message."""
    return repr(name) if len(text := repr(name)) <= _LONGEST_QUOTE else f"{text[:_LONGEST_QUOTE]} ..."


def write(layouts: Mapping[str, Layout]) -> bytes:
    """Return the pickle of a state dict. This is the inverse of ``read``."""
    entries = b"".join(_plain(name) + _tensor(layout) for name, layout in layouts.items())
    return pickle.PROTO + b"\x02" + _empty_dictionary() + pickle.MARK + entries + pickle.SETITEMS + pickle.STOP


def _tensor(layout: Layout) -> bytes:
    key, dtype, count = layout.storage
    storage = _plain("storage") + _global(_STORAGE_NAMES[dtype]) + _plain(key) + _plain("cpu") + _plain(count)
    view = b"".join(_plain(part) for part in layout[1:])
    hooks = pickle.NEWFALSE + _empty_dictionary()  # requires_grad is False
    arguments = pickle.MARK + storage + pickle.TUPLE + pickle.BINPERSID + view + hooks
    return _global(_TENSOR) + pickle.MARK + arguments + pickle.TUPLE + pickle.REDUCE


def _empty_dictionary() -> bytes:
    return _global(_DICTIONARY) + pickle.EMPTY_TUPLE + pickle.REDUCE


def _global(name: str) -> bytes:
    return pickle.GLOBAL + name.replace(" ", "\n").encode() + b"\n"


def _plain(value: str | int | tuple[int, ...]) -> bytes:
    return pickle.dumps(value, 2)[2:-1]  # without the protocol at the start and the stop at the end
