"""A neutral checkpoint in several files: a folder with ``part-00001.npz``, ``part-00002.npz`` ... and ``index.json``.

The parts hold the arrays in the order of their names. The index is the manifest of the single file, with one more field
that says which arrays are in which part. It is strict: each part has exactly the arrays that the index lists, in that
order, and there are no other parts.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, cast

from triglot.shared import files
from triglot.shared.arrays import Array
from triglot.shared.errors import CheckpointError, InputError

from . import manifest as manifests
from . import npz
from .manifest import Manifest
from .zip_structure import MOST_MEMBERS

INDEX = "index.json"
SCHEMA = "triglot.shards/1"

_PART = re.compile(r"part-.*\.npz")
_RESTORE = "restore the folder from a copy"
_MOST_NAMES = 6  # in a message

_SIZE = re.compile(r"([0-9]{1,15}) ?(B|[kKMGT]B|[KMGT]iB)?")
_UNITS = {
    **{"": 1, "B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12},
    **{"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40},
}


class Content(Protocol):
    """The arrays of a checkpoint. ``sizes`` has their names in the order of the file."""

    sizes: dict[str, int]

    def read(self, name: str) -> Array:
        """Return an array."""
        ...

    def manifest(self) -> Manifest:
        """Return the manifest, after all arrays were read."""
        ...


def parse_size(size: object) -> int:
    """Return a number of bytes that is given as a number, or as text such as "2GB" (decimal) or "2GiB" (binary).

    Raises:
        InputError: it is something else, or 0.
    """
    match = _SIZE.fullmatch(size) if isinstance(size, str) else None
    number = int(match[1]) * _UNITS[match[2] or ""] if match else size
    if type(number) is not int or number < 1:
        raise InputError(f"shard_size is {size!r:.80}; expected a number of bytes, 1 or more, such as '2GB' or '2GiB'")
    return number


def split(sizes: Mapping[str, int], limit: int) -> list[list[str]]:
    """Return the names in order, in groups of at most ``limit`` bytes. A larger tensor is alone in its group."""
    groups: list[list[str]] = [[]]
    total = 0
    for name, size in sizes.items():
        if groups[-1] and total + size > limit:
            groups.append([])
            total = 0
        groups[-1].append(name)
        total += size
    return groups


def write(folder: Path, content: Content, shard_size: int) -> None:
    """Write the new folder ``folder``, completely or not at all.

    Raises:
        OutputError: it cannot be written.
    """
    with files.writing_folder(folder) as draft:
        parts: dict[str, dict[str, Any]] = {}
        for number, names in enumerate(split(content.sizes, shard_size), 1):
            path = draft / _part_name(number)
            with path.open("w+b") as file, npz.Writer(file) as writer:
                for name in names:
                    writer.write_array(name, content.read(name))
            parts[path.name] = {"bytes": path.stat().st_size, "tensors": names}
        index = manifests.to_bytes(folder, content.manifest().to_json(SCHEMA) | {"parts": parts})
        (draft / INDEX).write_bytes(index)


def read(folder: Path) -> tuple[Manifest, dict[str, Array], dict[str, Path]]:
    """Return the manifest of a folder, its arrays as views of the mapped parts, and the path of the part of each.

    Raises:
        CheckpointError: a part is missing, repeated, renamed, damaged or not in the index, or the index is damaged.
    """
    index = folder / INDEX
    fields = manifests.decode(index, INDEX, _content(index), MOST_MEMBERS, SCHEMA)
    parts = _parts(index, fields.pop("parts", None))
    names = [name for _, listed in parts.values() for name in listed]
    if names != sorted(set(names)):
        raise npz.unreadable(index, "its parts do not list each tensor once, in order of their names", _RESTORE)
    manifest = manifests.parse(index, INDEX, fields, len(names))
    _check_files(folder, parts)
    arrays: dict[str, Array] = {}
    paths: dict[str, Path] = {}
    for part, (size, listed) in parts.items():
        path = folder / part
        reader = npz.Reader(path)
        if reader.members != [f"{name}.npy" for name in listed] or path.stat().st_size != size:
            raise npz.unreadable(path, f"it is not the file that {INDEX} lists", _RESTORE)
        arrays |= {name: reader.array(name) for name in listed}
        paths |= dict.fromkeys(listed, path)
    return manifest, arrays, paths


def _content(index: Path) -> bytes:
    try:
        with index.open("rb") as file:
            content = file.read(manifests.LONGEST + 1)
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{index} is missing, so {index.parent} is not a neutral checkpoint; pass a file or a folder that Triglot "
            "wrote, or port the folder first (triglot port)"
        ) from error
    except OSError as error:
        raise npz.unreadable(index, str(error.strerror)) from error
    if len(content) > manifests.LONGEST:
        raise npz.unreadable(index, f"it has more than {manifests.LONGEST} bytes")
    return content


def _parts(index: Path, value: object) -> dict[str, tuple[int, list[str]]]:
    """Return the size and the arrays of each part, by its name."""
    parts: dict[str, tuple[int, list[str]]] = {}
    entries = cast("dict[str, object]", value) if isinstance(value, dict) else {}
    for number, (name, entry) in enumerate(entries.items(), 1):
        fields = cast("dict[str, Any]", entry) if isinstance(entry, dict) else {}
        size, tensors = fields.get("bytes"), fields.get("tensors")
        names = cast("list[object]", tensors) if isinstance(tensors, list) else []
        listed = [tensor for tensor in names if isinstance(tensor, str)]
        # The size is compared with that of the file. 1.0 and True would equal 1.
        if name != _part_name(number) or fields.keys() != {"bytes", "tensors"} or type(size) is not int:
            raise npz.unreadable(index, f"its entry of part {number} is damaged", _RESTORE)
        if listed != tensors or not listed:
            raise npz.unreadable(index, f"its list of the tensors in {name} is damaged", _RESTORE)
        parts[name] = size, listed
    if not parts:
        raise npz.unreadable(index, "it lists no parts", _RESTORE)
    return parts


def _check_files(folder: Path, parts: Mapping[str, object]) -> None:
    """Refuse a folder whose parts are not those of the index."""
    present = {name for name in os.listdir(folder) if _PART.fullmatch(name)}
    problems = [f"{name} is missing" for name in parts if name not in present]
    problems += [f"{name!r:.80} is not in {INDEX}" for name in sorted(present - parts.keys())]
    if problems:
        others = len(problems) - _MOST_NAMES
        shown = [*problems[:_MOST_NAMES], *[f"{others} more"] * (others > 0)]
        raise npz.unreadable(folder, ", ".join(shown), _RESTORE)


def _part_name(number: int) -> str:
    return f"part-{number:05}.npz"
