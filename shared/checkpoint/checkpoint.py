"""The neutral checkpoint: one configuration and its tensors, in memory and as one ``.npz`` file.

The file is the container of ``npz.py`` with the tensors in order of their names, and a last member
``manifest.json``: the schema version, the whole configuration and, for each tensor, dtype, shape, axes, sha256 and
the name that it had where it was ported from. A training that is to go on is kept beside them, see
``training_members.py``. ``docs/checkpoint.md`` describes the file for other readers.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, cast, get_args

import numpy as np

from triglot.shared import files
from triglot.shared.arrays import Array
from triglot.shared.dtypes import BFLOAT16, FLOATS, HALVES, storable
from triglot.shared.errors import CheckpointError, ConfigError, OutputError, TrainingError
from triglot.shared.model import schema
from triglot.shared.model.config import ModelConfig
from triglot.shared.training.plan import Moments, Training

from . import npz
from . import training_state as training_members

SCHEMA = "triglot.checkpoint/1"
MANIFEST = "manifest.json"
SUFFIX = ".npz"

_DIGESTED = ("dtype", "shape", "sha256")  # what the digest covers of a tensor

_DTYPE_NAMES = {dtype: name for name, dtype in FLOATS.items()}  # NumPy takes its time to name one

_FIELDS = {"schema", "digest", "config", "tensors"}
_TRAINING_FIELDS = {"plan", "steps", "tensors", "digest"}
_TENSOR_FIELDS = {*_DIGESTED, "axes"}
_ALIAS_FIELDS = {"alias"}
_SHA256 = re.compile("[0-9a-f]{64}")

# JSON of a few bytes can become thirty times as much in memory, so what is parsed is limited: room for as many
# tensors as a file has members, at 500 bytes each, and for three times the lists, objects and commas that each needs.
_LONGEST_MANIFEST = 1 << 23
_MARKS_PER_MEMBER = 24
_MARKS_OF_CONFIG = 500
_LONGEST_REASON = 10_000
_LONGEST_SOURCE_NAME = 200

_BLOCK = 1 << 20  # numbers

Verify = Literal["open", "touched", "full"]


class Checkpoint:
    """A configuration, and the tensors that it describes: ``tensors`` maps canonical names to arrays.

    ``source_names`` says, for a ported checkpoint, what each tensor was called before. ``aliases`` are further names
    for tied tensors, which are stored once: alias -> name in ``tensors``. ``training``, if it is there, is what a
    training of these weights needs to go on; the digest is that of the model, and leaves it out. ``left_out`` names,
    for a port that was just read, the tensors of the source that it does not keep, and says why; no file holds that.

    Raises:
        CheckpointError: the tensors are not exactly those of the schema, a source name is no text, or the training is
            that of another model.
    """

    def __init__(
        self,
        config: ModelConfig,
        tensors: Mapping[str, Array],
        source_names: Mapping[str, str] | None = None,
        training: Training | None = None,
        left_out: Mapping[str, str] | None = None,
    ) -> None:
        schema.verify(config, _unread(tensors))
        self.config = config
        self.tensors = tensors
        self.source_names: Mapping[str, str] = source_names or {}
        self.training = training
        self.left_out: Mapping[str, str] = left_out or {}
        _check_source_names(self)
        _check_training(self)

    @property
    def aliases(self) -> dict[str, str]:
        """Further names of tied tensors: alias -> name in ``tensors``."""
        return schema.aliases(self.config)

    @property
    def digest(self) -> str:
        """The sha256 of the content, whatever the container: configuration, names, shapes, dtypes and bytes."""
        return _digest(self.config, {name: _entry(tensor) for name, tensor in sorted(self.tensors.items())})


def check_finite(checkpoint: Checkpoint, dtype: str) -> None:
    """Refuse weights that no model in ``dtype`` can compute with.

    Raises:
        CheckpointError: a tensor holds NaN or infinity, or a number that ``dtype`` cannot hold.
    """
    for name, tensor in checkpoint.tensors.items():
        numbers = tensor.reshape(-1)
        for start in range(0, numbers.size, _BLOCK):  # the answers of a whole table would take megabytes
            block = numbers[start : start + _BLOCK]
            if not np.isfinite(block).all():
                raise CheckpointError(
                    f"{name} holds NaN or infinity; no model can compute with it, take a checkpoint from before that"
                )
            with np.errstate(over="ignore"):
                if block.dtype != FLOATS[dtype] and not np.isfinite(block.astype(FLOATS[dtype])).all():
                    wide = "float32" if dtype in HALVES and np.isfinite(block.astype(np.float32)).all() else "float64"
                    raise CheckpointError(f"{name} holds numbers that do not fit into {dtype}; use dtype {wide}")


def _check_source_names(checkpoint: Checkpoint) -> None:
    known = checkpoint.tensors.keys() | checkpoint.aliases.keys()
    for name, source in checkpoint.source_names.items():
        if name not in known:
            raise CheckpointError(f"source_names has {name!r}, which is no tensor; leave it out")
        if not isinstance(source, str) or len(source) > _LONGEST_SOURCE_NAME or any(mark in source for mark in "{[,"):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise CheckpointError(
                f"source_names of {name} is {source!r:.80}; expected a name of at most {_LONGEST_SOURCE_NAME} "
                "characters, without commas and opening brackets"
            )


def _check_training(checkpoint: Checkpoint) -> None:
    training = checkpoint.training
    if training is None:
        return
    moments = training.moments
    unread = Moments(moments.steps, _unread(moments.first), _unread(moments.second))
    kept = training_members.arrays(Training(training.plan, unread, training.history))
    if wrong := sorted(training_members.problems(schema.parameters(checkpoint.config), moments.steps, kept)):
        raise CheckpointError(f"the training does not match the configuration: {'; '.join(wrong)}; give that of it")


def _unread(tensors: Mapping[str, Array]) -> Mapping[str, Array]:
    """The same arrays, not compared with their checksums: looking at their shapes is no reason to read them."""
    if isinstance(tensors, training_members.Part):
        return training_members.Part(_unread(tensors.found), tensors.prefix)
    return tensors.arrays if isinstance(tensors, _MappedTensors) else tensors


def check_target(path: Path) -> None:
    """Find out, before any work is done, whether a checkpoint can be written to ``path``.

    Raises:
        OutputError: its name does not end in .npz, by which a checkpoint is known; or see ``files.check_target``.
    """
    files.check_target(path)
    if path.suffix != SUFFIX and not (path.exists() and not path.is_file()):  # a device has the name that it has
        raise OutputError(
            f"cannot write {path}: a neutral checkpoint ends in {SUFFIX}; give it such a name, or say in which dialect "
            "else to write"
        )


def save(checkpoint: Checkpoint, path: str | Path) -> None:
    """Write ``checkpoint`` to ``path``: all of it or, if anything goes wrong, nothing.

    Raises:
        OutputError: the target cannot be written.
    """
    check_target(Path(path))
    parameters = schema.parameters(checkpoint.config)
    entries: dict[str, dict[str, Any]] = {}
    with files.writing(Path(path)) as file:
        if not file.seekable():
            raise OutputError(f"cannot write {path}: it is a pipe, and a checkpoint is no stream; give a file name")
        kept = training_members.arrays(checkpoint.training) if checkpoint.training else {}
        kept_entries: dict[str, dict[str, Any]] = {}
        with npz.Writer(file) as writer:
            for name in sorted([*checkpoint.tensors, *kept]):
                tensor = kept[name] if name in kept else checkpoint.tensors[name]
                writer.write_array(name, tensor)
                (kept_entries if name in kept else entries)[name] = _entry(tensor)
            digest = _digest(checkpoint.config, entries)
            for name, entry in entries.items():
                entry["axes"] = list(parameters[name].axes)
            entries |= {alias: {"alias": name} for alias, name in checkpoint.aliases.items()}
            for name, entry in entries.items():
                if name in checkpoint.source_names:
                    entry["source"] = checkpoint.source_names[name]
            manifest = {"schema": SCHEMA, "digest": digest, "config": checkpoint.config.to_dict(), "tensors": entries}
            if checkpoint.training:
                training = training_members.facts(checkpoint.training) | {"tensors": kept_entries}
                manifest["training"] = {**training, "digest": _hash(training)}
            content = json.dumps(manifest, indent=1, allow_nan=False).encode()
            if len(content) > _LONGEST_MANIFEST:
                raise OutputError(
                    f"cannot write {path}: its manifest has more than {_LONGEST_MANIFEST} bytes; shorten source_names"
                )
            writer.write_bytes(MANIFEST, content)


def load(path: str | Path, verify: Verify = "touched") -> Checkpoint:
    """Open the checkpoint at ``path``; its tensors are mapped from the file, not read.

    The structure of the file and the digest of its manifest are always verified. ``verify`` says when a tensor's bytes
    are compared with its sha256: "open" never, "touched" when it is first read, "full" now.

    Raises:
        CheckpointError: the file is no checkpoint, is damaged or is of a newer schema.
    """
    if verify not in get_args(Verify):
        raise CheckpointError(f"verify is {verify!r}; expected one of {', '.join(get_args(Verify))}")
    path = Path(path)
    reader = npz.Reader(path)
    config, entries, source_names, training = _manifest(path, reader)
    kept = {name: reader.array(name) for name in reader.names if name.startswith(training_members.PREFIX)}
    arrays = {name: reader.array(name) for name in reader.names if name not in kept}
    for name, entry in entries.items():
        if entry["dtype"] == BFLOAT16.name and name in arrays and arrays[name].dtype == np.uint16:
            arrays[name] = arrays[name].view(BFLOAT16)
    try:
        schema.verify(config, arrays)
    except CheckpointError as error:
        why = str(error)  # of a hostile file, megabytes of names
        raise _unreadable(path, why if len(why) < _LONGEST_REASON else f"{why[:_LONGEST_REASON]} ...") from error
    if reader.members != [*(f"{name}.npy" for name in sorted(reader.names)), MANIFEST]:
        raise _unreadable(path, f"its members are not its tensors in order and {MANIFEST}")
    parameters = schema.parameters(config)
    found = {name: {**_facts(array), "axes": parameters[name].axes} for name, array in arrays.items()}
    _compare(path, found, entries)
    restored = _restored(path, config, training, kept, verify)
    return Checkpoint(config, _mapped(path, arrays, entries, verify), source_names, restored)


def _facts(array: Array) -> dict[str, Any]:
    return {"dtype": _DTYPE_NAMES.get(array.dtype), "shape": array.shape}


def _compare(path: Path, found: Mapping[str, Mapping[str, Any]], stated: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse a manifest that says other things of the arrays than they are."""
    for name, facts in found.items():
        said = {key: stated.get(name, {}).get(key) for key in facts}
        if _json(facts) != _json(said):  # as texts: 1, 1.0 and True are equal in Python, and differ in the digest
            raise _unreadable(path, f"{MANIFEST} and the tensor {name} disagree")
    if stated.keys() != found.keys():
        raise _unreadable(path, f"{MANIFEST} names tensors that are not there")


def _restored(
    path: Path, config: ModelConfig, stated: dict[str, Any] | None, kept: Mapping[str, Array], verify: Verify
) -> Training | None:
    """The training that the file keeps; None if there is none."""
    if stated is None and not kept:
        return None
    if stated is None:
        raise _unreadable(path, f"{MANIFEST} says nothing of its training")
    entries = stated.pop("tensors")
    if wrong := sorted(training_members.problems(schema.parameters(config), stated["steps"], kept)):
        why = "; ".join(wrong)
        raise _unreadable(path, why if len(why) < _LONGEST_REASON else f"{why[:_LONGEST_REASON]} ...")
    _compare(path, {name: _facts(array) for name, array in kept.items()}, entries)
    try:
        return training_members.training_of(stated, _mapped(path, kept, entries, verify))
    except TrainingError as error:
        raise _unreadable(path, str(error)) from error


def _manifest(
    path: Path, reader: npz.Reader
) -> tuple[ModelConfig, dict[str, dict[str, Any]], dict[str, str], dict[str, Any] | None]:
    """The configuration; per stored tensor, what the manifest says of it; the source names; what it says of a training.

    If its digests are right.
    """
    if MANIFEST not in reader.members:
        remedy = "give an undamaged file that Triglot wrote; for the state dict of an article, name its dialect"
        raise _unreadable(path, f"member {MANIFEST} is missing", f"{remedy} (--source-dialect)")
    try:
        manifest = _parsed(reader.read_bytes(MANIFEST, _LONGEST_MANIFEST), len(reader.members))
        if "schema" in _object(manifest) and manifest["schema"] != SCHEMA:
            version = repr(manifest["schema"])[:100]
            raise _unreadable(path, f"its schema is {version}, expected {SCHEMA!r}", "update Triglot")
        training = _training(manifest.pop("training")) if "training" in manifest else None
        manifest = _object(manifest, _FIELDS)
        config = ModelConfig.from_dict(manifest["config"])
        layers = config.layers + config.decoder_layers
        if layers > len(reader.names) // schema.FEWEST_OF_A_LAYER:  # before as many names are made up
            raise _unreadable(path, f"its {len(reader.names)} tensors cannot be {layers} layers")
        entries: dict[str, dict[str, Any]] = {}
        aliases: dict[str, str] = {}
        source_names: dict[str, str] = {}
        for name, stated in _object(manifest["tensors"]).items():
            entry = _object(stated)
            if "source" in entry:
                source_names[name] = _text(entry.pop("source"))
            if "alias" in entry:
                aliases[name] = _text(_object(entry, _ALIAS_FIELDS)["alias"])
            else:
                entries[name] = _hashed(name, entry, _TENSOR_FIELDS)
        content = {name: {key: entry[key] for key in _DIGESTED} for name, entry in entries.items()}
        # An older file may lack fields that have a default; those that it has are written as we would write them.
        fields = {name: value for name, value in config.to_dict().items() if name in manifest["config"]}
        intact = manifest["digest"] == _digest(config, content) and _json(manifest["config"]) == _json(fields)
    except CheckpointError:
        raise
    except ConfigError as error:
        raise _unreadable(path, str(error)) from error
    except (ValueError, RecursionError) as error:
        raise _unreadable(path, f"{MANIFEST} is damaged") from error
    if not intact:
        raise _unreadable(path, f"{MANIFEST} was changed, its digest is wrong")
    if aliases != schema.aliases(config):
        raise _unreadable(path, f"{MANIFEST} has other aliases than its configuration")
    return config, entries, source_names, training


def _training(stated: object) -> dict[str, Any]:
    """What the manifest says of a training, without its digest, if that is right."""
    training = _object(stated, _TRAINING_FIELDS)
    for name, entry in _object(training["tensors"]).items():
        _hashed(name, entry, {*_DIGESTED})
    if training.pop("digest") != _hash(training):
        raise ValueError("the digest of the training is wrong")
    return training


def _hashed(name: str, stated: object, fields: set[str]) -> dict[str, Any]:
    """What is said of a tensor, if it has these fields, and a sha256 that is one."""
    entry = _object(stated, fields)
    if not _SHA256.fullmatch(_text(entry["sha256"])):
        raise ValueError(f"the sha256 of {name} is none")
    return entry


def _parsed(content: bytes, members: int) -> Any:
    """What the manifest holds; ASCII, for that is what ``json`` writes, and no name twice in one object."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ValueError("a name occurs twice")
        return found

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no JSON")

    if sum(content.count(mark) for mark in (b"{", b"[", b",")) > _MARKS_PER_MEMBER * members + _MARKS_OF_CONFIG:
        raise ValueError("it holds more than the tensors of the file")
    return json.loads(content.decode("ascii"), object_pairs_hook=once, parse_constant=refuse)


def _object(value: object, fields: set[str] | None = None) -> dict[str, Any]:
    """``value``, if it is a JSON object; with these fields and no others, if they are given."""
    if not isinstance(value, dict) or (fields is not None and value.keys() != fields):
        raise ValueError("a part of it is no object, or has other fields")
    return cast("dict[str, Any]", value)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("a part of it is no text")
    return value


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
        expected = self.unverified.get(name)
        if expected is not None:
            if _sha256(array) != expected:
                raise CheckpointError(
                    f"cannot read {self._path}: the checksum of {name} is wrong, the file is damaged; "
                    "restore it from a copy"
                )
            self.unverified.pop(name, None)  # another thread may have been here
        return array

    def __contains__(self, name: object) -> bool:
        return name in self.arrays  # which says nothing about the bytes

    def __iter__(self) -> Iterator[str]:
        return iter(self.arrays)

    def __len__(self) -> int:
        return len(self.arrays)


def _mapped(
    path: Path, arrays: Mapping[str, Array], entries: Mapping[str, Mapping[str, Any]], verify: Verify
) -> _MappedTensors:
    """The arrays, each to be compared with its checksum when ``verify`` says so."""
    expected = {} if verify == "open" else {name: entry["sha256"] for name, entry in entries.items()}
    mapped = _MappedTensors(path, arrays, expected)
    if verify == "full":
        for name in mapped:
            mapped[name]
    return mapped


def _sha256(tensor: Array) -> str:
    # A copy is made only of what is not contiguous already; the formats of weights are little-endian.
    return hashlib.sha256(storable(np.asarray(tensor, order="C")).data).hexdigest()


def _entry(tensor: Array) -> dict[str, Any]:
    return {"dtype": tensor.dtype.name, "shape": list(tensor.shape), "sha256": _sha256(tensor)}


def _digest(config: ModelConfig, entries: Mapping[str, Mapping[str, Any]]) -> str:
    return _hash({"config": config.identity(), "tensors": entries})


def _hash(content: object) -> str:
    return hashlib.sha256(_json(content).encode()).hexdigest()


def _json(content: object) -> str:
    return json.dumps(content, sort_keys=True)
