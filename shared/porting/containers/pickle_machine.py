"""Pickles, interpreted without running them.

A pickle is a program for a small stack machine. It is dangerous because it may import and call anything. The machine
below can do neither: it knows only the instructions that a state dict needs. Names of functions and classes are plain
text, which a ``Grammar`` compares with the few that it knows. Any other instruction or name is refused.

Source: the comments on the instructions in Python's ``pickletools``.
"""

import pickle
import struct
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

_MOST_INSTRUCTIONS = 1 << 20
_LONGEST_QUOTE = 80

DAMAGED = "its pickle is damaged; restore the file, or save it again"


class RefusalError(Exception):
    """The reason why a pickle is refused, and what to do."""


class Name(NamedTuple):
    """The name of a function or a class, "MODULE NAME". It is compared, never looked up."""

    text: str


def _refuse(*_: Any) -> Any:
    raise RefusalError(DAMAGED)


@dataclass(frozen=True)
class Grammar:
    """What the pickles of one library may say.

    ``names`` are the functions and classes that may occur, ``protocols`` the versions of the language. ``remedy`` ends
    the messages. ``call`` returns what a call of a known function with a tuple of arguments stands for, ``persistent``
    what the identifier of an object outside of the pickle stands for. ``build`` sets the attributes of an object.
    """

    names: Collection[str]
    protocols: Collection[int]
    remedy: str
    call: Callable[[Any, Any], Any]
    build: Callable[[Any, Any], None]
    persistent: Callable[[Any], Any] = _refuse


def run(content: memoryview | bytes, grammar: Grammar) -> Any:
    """Return the value of a pickle. Strings of bytes in it are views of ``content``.

    Raises:
        RefusalError: the pickle is damaged, or says anything that ``grammar`` does not know.
    """
    try:
        return _Machine(memoryview(content), grammar).run()
    except (LookupError, TypeError, ValueError, OverflowError, AttributeError, struct.error) as error:
        raise RefusalError(DAMAGED) from error


def quoted(name: object) -> str:
    """Return a name from a file, shortened for a message."""
    return repr(name) if len(text := repr(name)) <= _LONGEST_QUOTE else f"{text[:_LONGEST_QUOTE]} ..."


def write_name(name: str) -> bytes:
    """Return the instruction that names a function or a class, "MODULE NAME"."""
    return pickle.GLOBAL + name.replace(" ", "\n").encode() + b"\n"


def write_plain(value: str | int | tuple[int, ...] | None) -> bytes:
    """Return the instructions for a plain value."""
    return pickle.dumps(value, 2)[2:-1]  # without the protocol at the start and the stop at the end


def dictionary(value: Any) -> dict[Any, Any]:
    """Return ``value`` if it is a dictionary, or refuse the pickle."""
    if not isinstance(value, dict):
        raise RefusalError(DAMAGED)
    return cast("dict[Any, Any]", value)


class _Machine:
    """The stack and the memory of a pickle, and the instructions that are allowed."""

    def __init__(self, content: memoryview, grammar: Grammar) -> None:
        self._content = content
        self._position = 0
        self._grammar = grammar
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memory: dict[int, Any] = {}

    def run(self) -> Any:
        push, grammar = self._stack.append, self._grammar
        instructions: dict[bytes, Callable[[], None]] = {
            pickle.PROTO: self._protocol,
            pickle.FRAME: lambda: self._number("<Q"),  # frames only tell a reader how much to buffer
            pickle.MARK: lambda: self._marks.append(len(self._stack)),
            pickle.NONE: lambda: push(None),
            pickle.NEWTRUE: lambda: push(True),
            pickle.NEWFALSE: lambda: push(False),
            pickle.BININT: lambda: push(self._number("<i")),
            pickle.BININT1: lambda: push(self._number("<B")),
            pickle.BININT2: lambda: push(self._number("<H")),
            pickle.LONG1: lambda: push(int.from_bytes(self._bytes(self._number("<B")), "little", signed=True)),
            pickle.BINFLOAT: lambda: push(self._number(">d")),
            pickle.BINUNICODE: lambda: push(self._text(self._number("<I"))),
            pickle.SHORT_BINUNICODE: lambda: push(self._text(self._number("<B"))),
            pickle.SHORT_BINBYTES: lambda: push(self._bytes(self._number("<B"))),
            pickle.BINBYTES: lambda: push(self._bytes(self._number("<I"))),
            pickle.BINBYTES8: lambda: push(self._bytes(self._number("<Q"))),
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
            pickle.MEMOIZE: lambda: self._remember(len(self._memory)),
            pickle.BINGET: lambda: push(self._memory[self._number("<B")]),
            pickle.LONG_BINGET: lambda: push(self._memory[self._number("<I")]),
            pickle.GLOBAL: lambda: push(self._name(self._line(), self._line())),
            pickle.STACK_GLOBAL: lambda: push(self._name(*self._last(2))),
            pickle.BINPERSID: lambda: push(grammar.persistent(*self._last(1))),
            pickle.REDUCE: lambda: push(grammar.call(*self._last(2))),
            pickle.BUILD: lambda: self._build(*self._last(1)),
        }
        for _ in range(_MOST_INSTRUCTIONS):
            code = bytes(self._bytes(1))
            if code == pickle.STOP:
                (result,) = self._stack
                return result
            if code not in instructions:
                raise RefusalError(
                    f"its pickle uses the instruction {code!r}, which state dicts lack; {grammar.remedy}"
                )
            instructions[code]()
        raise RefusalError(f"its pickle has more than {_MOST_INSTRUCTIONS} instructions; {grammar.remedy}")

    def _bytes(self, count: int) -> memoryview:
        content = self._content[self._position : self._position + count]
        if len(content) != count:
            raise RefusalError(DAMAGED)
        self._position += count
        return content

    def _number(self, form: str) -> Any:
        return struct.unpack(form, self._bytes(struct.calcsize(form)))[0]

    def _text(self, length: int) -> str:
        return bytes(self._bytes(length)).decode()

    def _line(self) -> str:
        """Return the text up to the end of the line."""
        start = self._position
        while bytes(self._bytes(1)) != b"\n":
            pass
        return bytes(self._content[start : self._position - 1]).decode()

    def _protocol(self) -> None:
        number, known = self._number("<B"), self._grammar.protocols
        if number not in known:
            expected = " to ".join(str(protocol) for protocol in sorted({min(known), max(known)}))
            raise RefusalError(f"its pickle has protocol {number}; expected {expected}; {self._grammar.remedy}")

    def _last(self, count: int) -> list[Any]:
        if len(self._stack) - (self._marks[-1] if self._marks else 0) < count:
            raise RefusalError(DAMAGED)
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
        target = dictionary(self._stack[-1])
        for key, value in zip(values[::2], values[1::2], strict=True):
            if type(key) not in (str, int):  # hashing a deep tuple overflows the stack of the interpreter
                raise RefusalError(DAMAGED)
            if key in target:
                raise RefusalError(f"it holds {quoted(key)} twice; save it again")
            target[key] = value

    def _remember(self, place: int) -> None:
        self._memory[place] = self._stack[-1]  # a dictionary, so a high index costs no more than a low one

    def _name(self, module: Any, name: Any) -> Name:
        if not isinstance(module, str) or not isinstance(name, str):
            raise RefusalError(DAMAGED)
        if (text := f"{module} {name}") not in self._grammar.names:
            raise RefusalError(
                f"it names {quoted(f'{module}.{name}')}, which is not part of a state dict; {self._grammar.remedy}"
            )
        return Name(text)

    def _build(self, state: Any) -> None:
        self._grammar.build(self._stack[-1], state)
