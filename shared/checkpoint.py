"""The neutral checkpoint: one configuration and its tensors, in memory and as one ``.npz`` file.

The file is the container of ``npz.py`` with the tensors in order of their names, and a last member
``manifest.json``: the schema version, the whole configuration and, for each tensor, dtype, shape, axes, sha256 and
the name that it had where it was ported from. ``docs/checkpoint.md`` describes it for other readers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from . import files, npz, schema
from .arrays import Array
from .config import ModelConfig
from .dtypes import BFLOAT16, storable
from .errors import CheckpointError, ConfigError

SCHEMA = "triglot.checkpoint/1"
MANIFEST = "manifest.json"

_DIGESTED = ("dtype", "shape", "sha256")  # what the digest covers of a tensor

Verify = Literal["open", "touched", "full"]


class Checkpoint:
    """A configuration, and the tensors that it describes: ``tensors`` maps canonical names to arrays.

    ``source_names`` says, for a ported checkpoint, what each tensor was called before. ``aliases`` are further names
    for tied tensors, which are stored once: alias -> name in ``tensors``.

    Raises:
        CheckpointError: the tensors are not exactly those of the schema.
    """

    def __init__(
        self,
        config: ModelConfig,
        tensors: Mapping[str, Array],
        source_names: Mapping[str, str] | None = None,
    ) -> None:
        # The arrays behind mapped tensors: looking at their shapes is no reason to verify their checksums.
        schema.verify(config, tensors.arrays if isinstance(tensors, _MappedTensors) else tensors)
        self.config = config
        self.tensors = tensors
        self.source_names: Mapping[str, str] = source_names or {}

    @property
    def aliases(self) -> dict[str, str]:
        """Further names of tied tensors: alias -> name in ``tensors``."""
        return schema.aliases(self.config)

    @property
    def digest(self) -> str:
        """The sha256 of the content, whatever the container: configuration, names, shapes, dtypes and bytes."""
        return _digest(self.config, {name: _entry(tensor) for name, tensor in sorted(self.tensors.items())})


def check_finite(checkpoint: Checkpoint) -> None:
    """Refuse weights that no model can compute with.

    Raises:
        CheckpointError: a tensor holds NaN or infinity.
    """
    for name, tensor in checkpoint.tensors.items():
        if not np.isfinite(tensor).all():
            raise CheckpointError(
                f"{name} holds NaN or infinity; no model can compute with it, take a checkpoint from before that"
            )


def save(checkpoint: Checkpoint, path: str | Path) -> None:
    """Write ``checkpoint`` to ``path``: all of it or, if anything goes wrong, nothing.

    Raises:
        OutputError: the target cannot be written.
    """
    files.check_target(Path(path))
    parameters = schema.parameters(checkpoint.config)
    entries: dict[str, dict[str, Any]] = {}
    with files.writing(Path(path)) as file, npz.Writer(file) as writer:
        for name in sorted(checkpoint.tensors):
            tensor = checkpoint.tensors[name]
            writer.write_array(name, tensor)
            entries[name] = _entry(tensor)
        digest = _digest(checkpoint.config, entries)
        for name, entry in entries.items():
            entry["axes"] = list(parameters[name].axes)
        entries |= {alias: {"alias": name} for alias, name in checkpoint.aliases.items()}
        for name, entry in entries.items():
            if name in checkpoint.source_names:
                entry["source"] = checkpoint.source_names[name]
        manifest = {"schema": SCHEMA, "digest": digest, "config": checkpoint.config.to_dict(), "tensors": entries}
        writer.write_bytes(MANIFEST, json.dumps(manifest, indent=1, allow_nan=False).encode())


def load(path: str | Path, verify: Verify = "touched") -> Checkpoint:
    """Open the checkpoint at ``path``; its tensors are mapped from the file, not read.

    The structure of the file and the digest of its manifest are always verified. ``verify`` says when a tensor's bytes
    are compared with its sha256: "open" never, "touched" when it is first read, "full" now.

    Raises:
        CheckpointError: the file is no checkpoint, is damaged or is of a newer schema.
    """
    if verify not in get_args(Verify):
        raise CheckpointError(
            f"unknown level of verification {verify!r}; expected one of {', '.join(get_args(Verify))}"
        )
    path = Path(path)
    reader = npz.Reader(path)
    config, entries, source_names = _manifest(path, reader)
    arrays = {name: reader.array(name) for name in reader.names}
    for name, entry in entries.items():
        if entry["dtype"] == BFLOAT16.name and name in arrays and arrays[name].dtype == np.uint16:
            arrays[name] = arrays[name].view(BFLOAT16)
    try:
        schema.verify(config, arrays)
    except CheckpointError as error:
        raise _unreadable(path, str(error)) from error
    if reader.members != [*(f"{name}.npy" for name in sorted(arrays)), MANIFEST]:
        raise _unreadable(path, f"its members are not its tensors in order and {MANIFEST}")
    parameters = schema.parameters(config)
    for name, array in arrays.items():
        found = {"dtype": array.dtype.name, "shape": list(array.shape), "axes": list(parameters[name].axes)}
        if found != {key: entries.get(name, {}).get(key) for key in found}:
            raise _unreadable(path, f"{MANIFEST} and the tensor {name} disagree")
    if entries.keys() != arrays.keys():
        raise _unreadable(path, f"{MANIFEST} names tensors that are not there")
    tensors = _MappedTensors(path, arrays, {name: entry["sha256"] for name, entry in entries.items()})
    if verify == "open":
        tensors.unverified.clear()
    if verify == "full":
        for name in tensors:
            tensors[name]
    return Checkpoint(config, tensors, source_names)


def _manifest(path: Path, reader: npz.Reader) -> tuple[ModelConfig, dict[str, dict[str, Any]], dict[str, str]]:
    """The configuration; per stored tensor, what the manifest says of it; the source names. If its digest is right."""
    try:
        manifest = json.loads(reader.read_bytes(MANIFEST))
        version = manifest["schema"]
        if version != SCHEMA:
            raise _unreadable(path, f"its schema is {version!r}, expected {SCHEMA!r}", "update Triglot")
        config = ModelConfig.from_dict(manifest["config"])
        entries: dict[str, dict[str, Any]] = {name: dict(entry) for name, entry in manifest["tensors"].items()}
        source_names = {name: str(entry["source"]) for name, entry in entries.items() if "source" in entry}
        aliases = {name: entry["alias"] for name, entry in entries.items() if "alias" in entry}
        entries = {name: entry for name, entry in entries.items() if name not in aliases}
        content = {name: {key: entry[key] for key in _DIGESTED} for name, entry in entries.items()}
        intact = manifest["digest"] == _digest(config, content) and aliases == schema.aliases(config)
    except CheckpointError:
        raise
    except ConfigError as error:
        raise _unreadable(path, str(error)) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _unreadable(path, f"{MANIFEST} is damaged") from error
    if not intact:
        raise _unreadable(path, f"{MANIFEST} was changed, its digest is wrong")
    return config, entries, source_names


def _unreadable(path: Path, why: str, remedy: str = "give an undamaged file that Triglot wrote") -> CheckpointError:
    return CheckpointError(f"cannot read {path}: {why}; {remedy}")


class _MappedTensors(Mapping[str, Array]):
    """Arrays of a mapped file; each is compared with its hash when it is first read."""

    def __init__(self, path: Path, arrays: Mapping[str, Array], unverified: Mapping[str, str]) -> None:
        self._path = path
        self.arrays = arrays
        self.unverified = dict(unverified)

    def __getitem__(self, name: str) -> Array:
        array = self.arrays[name]
        if name in self.unverified:
            if _sha256(array) != self.unverified[name]:
                raise CheckpointError(
                    f"cannot read {self._path}: the checksum of {name} is wrong, the file is damaged; "
                    "restore it from a copy"
                )
            del self.unverified[name]
        return array

    def __contains__(self, name: object) -> bool:
        return name in self.arrays  # which says nothing about the bytes

    def __iter__(self) -> Iterator[str]:
        return iter(self.arrays)

    def __len__(self) -> int:
        return len(self.arrays)


def _sha256(tensor: Array) -> str:
    # A copy is made only of what is not contiguous already; the formats of weights are little-endian.
    return hashlib.sha256(storable(np.asarray(tensor, order="C")).data).hexdigest()


def _entry(tensor: Array) -> dict[str, Any]:
    return {"dtype": tensor.dtype.name, "shape": list(tensor.shape), "sha256": _sha256(tensor)}


def _digest(config: ModelConfig, entries: Mapping[str, Mapping[str, Any]]) -> str:
    content = {"config": config.identity(), "tensors": entries}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
