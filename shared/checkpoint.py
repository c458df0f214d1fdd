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
from typing import Any, Literal

from . import files, npz, schema
from .arrays import Array
from .config import ModelConfig
from .errors import CheckpointError

SCHEMA = "triglot.checkpoint/1"
MANIFEST = "manifest.json"

Verify = Literal["open", "touched", "full"]


class Checkpoint:
    """A configuration, and the tensors that it describes: ``tensors`` maps canonical names to arrays.

    ``source_names`` says, for a ported checkpoint, what each tensor was called before.

    Raises:
        CheckpointError: the tensors are not exactly those of the schema.
    """

    def __init__(
        self,
        config: ModelConfig,
        tensors: Mapping[str, Array],
        source_names: Mapping[str, str] | None = None,
    ) -> None:
        if not isinstance(tensors, _MappedTensors):  # a file's manifest has been verified already
            schema.verify(config, tensors)
        self.config = config
        self.tensors = tensors
        self.source_names: Mapping[str, str] = source_names or {}

    @property
    def digest(self) -> str:
        """The sha256 of the content, whatever the container: configuration, names, shapes, dtypes and bytes."""
        return _digest(self.config, {name: _entry(tensor) for name, tensor in sorted(self.tensors.items())})


def save(checkpoint: Checkpoint, path: str | Path) -> None:
    """Write ``checkpoint`` to ``path``: all of it or, if anything goes wrong, nothing.

    Raises:
        OutputError: the target cannot be written.
    """
    path = Path(path)
    parameters = schema.parameters(checkpoint.config)
    entries: dict[str, dict[str, Any]] = {}
    with files.writing(path) as file:
        writer = npz.Writer(file)
        for name in sorted(checkpoint.tensors):
            tensor = checkpoint.tensors[name]
            writer.write_array(name, tensor)
            entries[name] = _entry(tensor)
        digest = _digest(checkpoint.config, entries)
        for name, entry in entries.items():
            entry["axes"] = list(parameters[name].axes)
            if name in checkpoint.source_names:
                entry["source"] = checkpoint.source_names[name]
        manifest = {
            "schema": SCHEMA,
            "digest": digest,
            "config": checkpoint.config.to_dict(),
            "tensors": entries,
        }
        writer.write_bytes(MANIFEST, json.dumps(manifest, indent=1).encode())
        writer.close()


def load(path: str | Path, verify: Verify = "touched") -> Checkpoint:
    """Open the checkpoint at ``path``; its tensors are mapped from the file, not read.

    ``verify`` says when a tensor's bytes are compared with its sha256: "open" never (only the structure is
    checked), "touched" when it is first read, "full" now.

    Raises:
        CheckpointError: the file is no checkpoint, is damaged or is of a newer schema.
    """
    path = Path(path)
    reader = npz.Reader(path)
    try:
        manifest = json.loads(reader.read_bytes(MANIFEST))
        version, entries = manifest["schema"], manifest["tensors"]
        if version != SCHEMA:
            raise CheckpointError(f"cannot read {path}: its schema is {version!r}, expected {SCHEMA!r}; update Triglot")
        config = ModelConfig.from_dict(manifest["config"])
        hashes = {name: str(entry["sha256"]) for name, entry in entries.items()}
        source_names = {name: str(entry["source"]) for name, entry in entries.items() if "source" in entry}
        shapes = {name: tuple(entry["shape"]) for name, entry in entries.items()}
    except (UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"cannot read {path}: {MANIFEST} is damaged; give a file that Triglot wrote") from error
    arrays = {name: reader.array(name) for name in reader.names}
    schema.verify(config, arrays)
    if shapes != {name: array.shape for name, array in arrays.items()}:
        raise CheckpointError(
            f"cannot read {path}: {MANIFEST} and the tensors disagree; give a file that Triglot wrote"
        )
    tensors = _MappedTensors(path, arrays, hashes if verify != "open" else {})
    if verify == "full":
        for name in tensors:
            tensors[name]
    return Checkpoint(config, tensors, source_names)


class _MappedTensors(Mapping[str, Array]):
    """Arrays of a mapped file; each is compared with its hash when it is first read."""

    def __init__(self, path: Path, arrays: Mapping[str, Array], unverified: Mapping[str, str]) -> None:
        self._path = path
        self._arrays = arrays
        self._unverified = dict(unverified)

    def __getitem__(self, name: str) -> Array:
        array = self._arrays[name]
        if name in self._unverified:
            if _sha256(array) != self._unverified[name]:
                raise CheckpointError(
                    f"cannot read {self._path}: the checksum of {name} is wrong, the file is damaged; "
                    "restore it from a copy"
                )
            del self._unverified[name]
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)


def _sha256(tensor: Array) -> str:
    # A copy is made only of what is not little-endian and contiguous already.
    data = tensor.astype(tensor.dtype.newbyteorder("<"), order="C", copy=False)
    return hashlib.sha256(data.data).hexdigest()


def _entry(tensor: Array) -> dict[str, Any]:
    return {"dtype": tensor.dtype.name, "shape": list(tensor.shape), "sha256": _sha256(tensor)}


def _digest(config: ModelConfig, entries: Mapping[str, Mapping[str, Any]]) -> str:
    content = {"config": config.to_dict(), "tensors": entries}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
