"""Nested maps of arrays in ``.msgpack`` files, as ``flax.serialization.to_bytes`` writes them, read without Flax.

An array is an extension type whose payload is a message of its own: shape, dtype, numbers. Flax splits arrays of more
than 1 GB into chunks (``flax/serialization.py``). The keys on the way to an array, joined by dots, are its name.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgpack  # pyright: ignore[reportMissingTypeStubs]
import numpy as np

from triglot.shared import files
from triglot.shared.arrays import FLOATS, Array
from triglot.shared.errors import PortingError

_ARRAY, _COMPLEX, _SCALAR = 1, 2, 3  # the extension types of Flax
_CHUNKED = "__msgpack_chunked_array__"
_LONGEST_CHUNK = 1 << 30  # bytes, as in Flax

_DTYPES: dict[str, np.dtype[Any]] = {
    **FLOATS,
    **{f"{sign}int{bits}": np.dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "bool": np.dtype(np.bool_),
}

# A hundred times more entries than any Transformer has, in one map and in all. The library reserves memory for the
# entries that a map claims to have, at every depth.
_LONGEST_MAP = 1 << 12
_MOST_ENTRIES = 1 << 18
_DEEPEST = 64
_MOST_AXES = 64  # the same limit as NumPy

_RESTORE = "restore the file, or save the parameters again with flax.serialization.to_bytes"
_LIBRARY = cast("Any", msgpack)  # it has no types
_DAMAGE = (_LIBRARY.UnpackException, ValueError, TypeError)  # what the library raises if a file is damaged


def is_map(start: bytes) -> bool:
    """Return whether a file that begins with ``start`` may be a message with a map that is not empty."""
    return start[:1] in (b"\xde", b"\xdf") or b"\x81" <= start[:1] <= b"\x8f"


def read(path: Path) -> dict[str, Array]:
    """Return the arrays by name. They are copies, because the library does not return views.

    Raises:
        PortingError: the file is damaged, or holds anything but nested maps of arrays.
    """
    try:
        content = files.mapped(path)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise PortingError(f"cannot read {path}: {reason}; restore it, or change its permissions") from error
    try:
        tree = _unpacked(memoryview(content), _LONGEST_MAP, object_pairs_hook=_Maps(), ext_hook=_extension)
        return dict(_flat(tree, ()))
    except PortingError as error:
        raise PortingError(f"cannot read {path}: {error}; {_RESTORE}") from error
    except _DAMAGE as error:
        raise PortingError(f"cannot read {path}: its message is damaged; {_RESTORE}") from error


def write(file: BinaryIO, tensors: Mapping[str, Array]) -> None:
    """Write a file that ``flax.serialization.msgpack_restore`` reads, with one array in memory at a time.

    Raises:
        PortingError: the name of a tensor is also the beginning of another name.
    """
    _write(file, {tuple(name.split(".")): name for name in tensors}, tensors)


class _Maps:
    """A hook that makes a dictionary of each map, and refuses repeated keys and too many entries."""

    def __init__(self) -> None:
        self._entries = 0

    def __call__(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        self._entries += len(pairs) + 1
        if self._entries > _MOST_ENTRIES:
            raise PortingError(f"it has more than {_MOST_ENTRIES} entries")
        content = dict(pairs)
        if len(content) != len(pairs):
            names = [name for name, _ in pairs]
            raise PortingError(f"it holds {next(name for name in names if names.count(name) > 1)!r:.80} twice")
        return content


def _unpacked(content: memoryview | bytes, longest_map: int = 0, **hooks: Any) -> Any:
    """Return the message in ``content``. The library compares every length with the available bytes."""
    return _LIBRARY.unpackb(
        content,
        strict_map_key=True,
        max_map_len=longest_map,
        max_array_len=_MOST_AXES,
        max_str_len=len(content),
        max_bin_len=len(content),
        max_ext_len=len(content),
        **hooks,
    )


def _extension(code: int, payload: bytes) -> Array:
    if code not in (_ARRAY, _SCALAR):
        kind = "a complex number" if code == _COMPLEX else f"of the extension type {code}"
        raise PortingError(f"one of its values is {kind}, expected an array")
    shape, kind, numbers = cast("tuple[Any, Any, Any]", _unpacked(payload))  # a ValueError if it has other parts
    if kind in _DTYPES and isinstance(numbers, bytes) and _is_shape(shape):
        dtype = _DTYPES[kind]
        if math.prod(shape) * dtype.itemsize == len(numbers):
            return np.frombuffer(numbers, dtype.newbyteorder("<")).reshape(shape).astype(dtype, copy=False)
    raise PortingError("one of its arrays does not have a known dtype, or the size that its shape states")


def _is_shape(sizes: Iterable[Any]) -> bool:
    return all(type(size) is int and size >= 0 for size in sizes)


def _flat(tree: object, path: tuple[str, ...]) -> Iterator[tuple[str, Array]]:
    """Yield the name of every array in a tree, and the array."""
    name = ".".join(path)
    if isinstance(tree, dict) and len(path) < _DEEPEST:
        branches = cast("dict[str, object]", tree)
        if _CHUNKED in branches and path:
            yield name, _joined(name, branches)
            return
        for key, branch in branches.items():
            if not key or "." in key:
                raise PortingError(f"its {key!r:.80} in {name[:80]!r} is not the name of a part")
            yield from _flat(branch, (*path, key))
    elif isinstance(tree, np.ndarray) and path:
        yield name, cast("Array", tree)
    else:
        kind = type(cast("object", tree)).__name__
        raise PortingError(f"its {name[:80]!r} is a {kind}, expected nested maps of arrays, up to {_DEEPEST} deep")


def _joined(name: str, entry: Mapping[str, object]) -> Array:
    """Return an array that was split into flat chunks."""
    shape, chunks = (_listed(entry.get(part)) for part in ("shape", "chunks"))
    if set(entry) == {_CHUNKED, "shape", "chunks"} and _is_shape(shape) and chunks:
        arrays: list[Array] = [chunk for chunk in chunks if isinstance(chunk, np.ndarray) and chunk.ndim == 1]
        same = len(arrays) == len(chunks) and len({array.dtype for array in arrays}) == 1
        if same and sum(array.size for array in arrays) == math.prod(shape):
            return np.concatenate(arrays).reshape(shape)
    raise PortingError(f"the chunks of {name[:80]!r} are not the parts of an array")


def _listed(entry: object) -> list[Any]:
    """Return the values of a map with the keys "0", "1", ..., or nothing if it is another map."""
    values = cast("dict[str, Any]", entry) if isinstance(entry, dict) else {}
    return [values.get(str(number)) for number in range(len(values))]


def _write(file: BinaryIO, names: Mapping[tuple[str, ...], str], tensors: Mapping[str, Array]) -> None:
    """Write the map of the tensors in ``names``, whose keys are the rest of the path to each."""
    branches: dict[str, dict[tuple[str, ...], str]] = {}
    for path, name in names.items():
        branches.setdefault(path[0], {})[path[1:]] = name
    packer = _LIBRARY.Packer()
    file.write(packer.pack_map_header(len(branches)))
    for key, branch in branches.items():
        file.write(packer.pack(key))
        if () not in branch:
            _write(file, branch, tensors)
        elif len(branch) == 1:
            _write_array(file, packer, tensors[branch[()]])
        else:
            raise PortingError(f"{branch[()]} is also the beginning of another name; rename it, or write .safetensors")


def _write_array(file: BinaryIO, packer: Any, array: Array) -> None:
    longest = _LONGEST_CHUNK // array.itemsize
    if array.nbytes <= _LONGEST_CHUNK:
        file.write(packer.pack_ext_type(_ARRAY, _payload(array)))
        return
    flat, starts = np.asarray(array, order="C").reshape(-1), range(0, array.size, longest)
    file.write(packer.pack_map_header(3))
    shape = {str(axis): size for axis, size in enumerate(array.shape)}
    file.write(packer.pack(_CHUNKED) + packer.pack(True) + packer.pack("shape") + packer.pack(shape))
    file.write(packer.pack("chunks") + packer.pack_map_header(len(starts)))
    for number, start in enumerate(starts):
        file.write(packer.pack(str(number)))
        file.write(packer.pack_ext_type(_ARRAY, _payload(flat[start : start + longest])))


def _payload(array: Array) -> bytes:
    numbers = np.asarray(array, array.dtype.newbyteorder("<"), order="C").tobytes()
    return _LIBRARY.packb((array.shape, array.dtype.name, numbers))
