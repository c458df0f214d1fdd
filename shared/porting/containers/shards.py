"""Sharded weights: several files with an index, as transformers saves large models.

The index is JSON; its ``weight_map`` maps each tensor to its file. The files may have any format that Triglot reads.
Triglot writes safetensors, named and divided as transformers does it.
"""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from triglot.shared.arrays import Array
from triglot.shared.checkpoint.checksums import DeferredTensors, without_verifying
from triglot.shared.checkpoint.shards import split
from triglot.shared.errors import PortingError
from triglot.shared.porting.json_file import read_object, stays_inside

from . import safetensors

SUFFIX = ".index.json"
WEIGHTS_FILE = "model.safetensors"
_REMEDY = "restore the file, or save the model again"
_MOST_NAMES = 6  # in a message


def read(path: Path, read_file: Callable[[Path], Mapping[str, Array]]) -> dict[str, Array]:
    """Return the tensors of all files that the index ``path`` lists, as views of the mapped files.

    ``read_file`` reads one of them.

    Raises:
        PortingError: the index is damaged, a file is missing or damaged, or the tensors in a file are not those that
            the index lists.
    """
    tensors: dict[str, Array] = {}
    for name, listed in _listed(path).items():
        shard = path.parent / name
        if not os.path.isfile(shard):
            raise PortingError(f"{name!r:.80} is missing in {path.parent}, but {path.name} lists it; {_REMEDY}")
        found = read_file(shard)
        problems = [f"{tensor!r:.80} is missing" for tensor in listed - found.keys()]
        problems += [f"{tensor!r:.80} is not in the index" for tensor in found.keys() - listed]
        if problems:
            problems = [*sorted(problems)[:_MOST_NAMES], *[f"{len(problems)} in all"] * (len(problems) > _MOST_NAMES)]
            raise PortingError(f"{shard} does not match {path.name}: {', '.join(problems)}; {_REMEDY}")
        tensors |= found
    return tensors


def write(folder: Path, tensors: Mapping[str, Array], shard_size: int | None) -> None:
    """Write ``tensors`` into a new folder: one file without an index if they fit into ``shard_size`` bytes, or several.

    A tensor that is larger has a file of its own.
    """
    unread = without_verifying(tensors)
    sizes = {name: tensor.nbytes for name, tensor in unread.items()}
    groups = split(sizes, sum(sizes.values()) if shard_size is None else shard_size)
    weight_map: dict[str, str] = {}
    for number, names in enumerate(groups, 1):
        path = folder / (f"model-{number:05}-of-{len(groups):05}.safetensors" if len(groups) > 1 else WEIGHTS_FILE)
        weight_map |= dict.fromkeys(names, path.name)
        with path.open("wb") as file:
            safetensors.write(file, DeferredTensors({name: unread[name] for name in names}, tensors.__getitem__))
    if len(groups) > 1:
        index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": dict(sorted(weight_map.items()))}
        (folder / f"{WEIGHTS_FILE}{SUFFIX}").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def first(path: Path) -> Path:
    """Return the first file that the index ``path`` lists.

    Raises:
        PortingError: the index is damaged.
    """
    return path.parent / next(iter(_listed(path)))


def _listed(path: Path) -> dict[str, set[str]]:
    """Return the names of the files in an index, each with the tensors that it holds."""
    weight_map: Any = read_object(path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise PortingError(f"cannot read {path}: it has no weight_map from tensors to files; {_REMEDY}")
    listed: dict[str, set[str]] = {}
    for tensor, name in cast("dict[str, object]", weight_map).items():
        # A file beside the index, never one elsewhere on the machine.
        if not isinstance(name, str) or not stays_inside(name) or name in ("", ".") or "/" in name:
            raise PortingError(f"cannot read {path}: {name!r:.80} is not the name of a file beside it; {_REMEDY}")
        listed.setdefault(name, set()).add(tensor)
    return listed
