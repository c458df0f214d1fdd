"""The manifest of a checkpoint file, ``manifest.json``: its records, its bytes and its strict parser.

``docs/checkpoint.md`` describes every field for other readers.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from triglot.shared.arrays import Array
from triglot.shared.errors import CheckpointError, ConfigError, OutputError, TrainingError
from triglot.shared.model import schema
from triglot.shared.model.config import ModelConfig
from triglot.shared.training.plan import Plan

from .npz import unreadable
from .text import MARKS, MOST_MARKS, TextSettings

MEMBER = "manifest.json"
SCHEMA = "triglot.checkpoint/1"

# JSON can take thirty times its size in memory, so its size and structure are limited: room for as many tensors as a
# file has members, at 500 bytes each, and three times the lists, objects and commas that each needs.
LONGEST = 1 << 23
_MARKS_PER_MEMBER = 24
_MARKS_OF_CONFIG = 500

_FIELDS = {"schema", "digest", "config", "tensors"}
_TRAINING_FIELDS = {"plan", "steps", "tensors", "digest"}
_TEXT_FIELDS = {"max_tokens", "prompts", "default_prompt", "similarity", "digest"}
_TENSOR_FIELDS = {"dtype", "shape", "sha256"}
_SHA256 = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class TensorRecord:
    """The manifest's record of one stored tensor. Members of a training run have no ``axes``."""

    dtype: str
    shape: tuple[int, ...]
    sha256: str
    axes: tuple[str, ...] | None = None

    @classmethod
    def of(cls, tensor: Array, checksum: str, axes: tuple[str, ...] | None = None) -> TensorRecord:
        """Return the record of ``tensor``, which has this checksum."""
        return cls(tensor.dtype.name, tensor.shape, checksum, axes)

    def content(self) -> dict[str, Any]:
        """Return the part that the digest covers, as JSON."""
        return {"dtype": self.dtype, "shape": list(self.shape), "sha256": self.sha256}

    def to_json(self) -> dict[str, Any]:
        """Return the whole record as JSON."""
        return self.content() | ({} if self.axes is None else {"axes": list(self.axes)})


@dataclass(frozen=True)
class TrainingRecord:
    """The manifest's record of a training run. ``steps`` is checked together with the members, not by the parser."""

    plan: Plan
    steps: int
    tensors: Mapping[str, TensorRecord]

    def to_json(self) -> dict[str, Any]:
        """Return the record as JSON, with a digest of its own."""
        tensors = {name: record.to_json() for name, record in self.tensors.items()}
        content = {"plan": self.plan.to_dict(), "steps": self.steps, "tensors": tensors}
        return {**content, "digest": _hash(content)}


@dataclass(frozen=True)
class Manifest:
    """The configuration, a record per stored tensor, the names before porting, a training run, and text settings."""

    config: ModelConfig
    tensors: Mapping[str, TensorRecord]
    source_names: Mapping[str, str]
    training: TrainingRecord | None = None
    text: TextSettings | None = None

    def to_json(self, schema_name: str = SCHEMA) -> dict[str, Any]:
        """Return the fields of ``manifest.json``."""
        entries = {name: record.to_json() for name, record in self.tensors.items()}
        entries |= {alias: {"alias": name} for alias, name in schema.aliases(self.config).items()}
        for name, entry in entries.items():
            if name in self.source_names:
                entry["source"] = self.source_names[name]
        content = {
            "schema": schema_name,
            "digest": digest(self.config, self.tensors),
            "config": self.config.to_dict(),
            "tensors": entries,
        }
        if self.training:
            content["training"] = self.training.to_json()
        if self.text:
            settings = self.text.to_dict()
            content["text"] = {**settings, "digest": _hash(settings)}
        return content


def to_bytes(path: Path, content: Mapping[str, Any]) -> bytes:
    """Return the manifest of the file ``path`` as encoded JSON.

    Raises:
        OutputError: it is longer than a reader accepts.
    """
    text = json.dumps(content, indent=1, allow_nan=False).encode()
    if len(text) > LONGEST:
        raise OutputError(
            f"cannot write {path}: its manifest has {len(text)} bytes, expected at most {LONGEST}; shorten source_names"
        )
    return text


def digest(config: ModelConfig, tensors: Mapping[str, TensorRecord]) -> str:
    """Return the sha256 of the model: configuration, and the name, dtype, shape and numbers of every tensor."""
    contents = {name: record.content() for name, record in tensors.items()}
    return _hash({"config": config.identity(), "tensors": contents})


def decode(path: Path, name: str, content: bytes, member_count: int, schema_name: str = SCHEMA) -> dict[str, Any]:
    """Return the fields of the manifest ``name`` in ``path``, for a file with ``member_count`` members.

    Raises:
        CheckpointError: it is not JSON, or has another schema.
    """
    try:
        fields = _object(_load(content, member_count))
    except (ValueError, RecursionError) as error:
        raise unreadable(path, f"{name} is damaged") from error
    if "schema" in fields and fields["schema"] != schema_name:
        schema_of_file = repr(fields["schema"])[:100]
        raise unreadable(path, f"its schema is {schema_of_file}, expected {schema_name!r}", "update Triglot")
    return fields


def parse(path: Path, name: str, fields: dict[str, Any], tensor_count: int) -> Manifest:
    """Return the manifest ``name`` in ``path``, which has these ``fields``, for ``tensor_count`` tensors.

    Raises:
        CheckpointError: it has other fields, or one of its digests is wrong.
    """
    try:
        training = _training(fields.pop("training")) if "training" in fields else None
        text = _text_settings(fields.pop("text")) if "text" in fields else None
        _object(fields, _FIELDS)
        config = ModelConfig.from_dict(fields["config"])
        layers = config.layers + config.decoder_layers
        if layers > tensor_count // schema.FEWEST_OF_A_LAYER:  # before names are generated for all of them
            raise unreadable(path, f"its {tensor_count} tensors cannot be {layers} layers")
        tensors: dict[str, TensorRecord] = {}
        aliases: dict[str, str] = {}
        source_names: dict[str, str] = {}
        for tensor, value in _object(fields["tensors"]).items():
            entry = _object(value)
            if "source" in entry:
                source_names[tensor] = _text(entry.pop("source"))
            if "alias" in entry:
                aliases[tensor] = _text(_object(entry, {"alias"})["alias"])
            else:
                tensors[tensor] = _tensor(entry, {*_TENSOR_FIELDS, "axes"})
        # Older files may lack fields that have a default. The others must be written exactly as we write them.
        config_fields = {field: value for field, value in config.to_dict().items() if field in fields["config"]}
        intact = fields["digest"] == digest(config, tensors) and _json(fields["config"]) == _json(config_fields)
    except CheckpointError:
        raise
    except (ConfigError, TrainingError) as error:
        raise unreadable(path, str(error)) from error
    except (ValueError, RecursionError) as error:
        raise unreadable(path, f"{name} is damaged") from error
    if not intact:
        raise unreadable(path, f"{name} was changed: its digest is wrong")
    if aliases != schema.aliases(config):
        raise unreadable(path, f"the aliases in {name} are not those of its configuration")
    return Manifest(config, tensors, source_names, training, text)


def _load(content: bytes, member_count: int) -> Any:
    """Decode the JSON: ASCII only, no name twice in an object, no NaN, and not more than ``member_count`` explains."""
    most_marks = _MARKS_PER_MEMBER * member_count + _MARKS_OF_CONFIG + MOST_MARKS
    if sum(map(content.count, MARKS.encode())) > most_marks:
        raise ValueError("more JSON than the tensors of the file need")
    return json.loads(content.decode("ascii"), object_pairs_hook=_without_repetition, parse_constant=_refuse_constant)


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a name occurs twice")
    return fields


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _training(value: object) -> TrainingRecord:
    fields = _object(value, _TRAINING_FIELDS)
    if fields.pop("digest") != _hash(fields):
        raise ValueError("the digest of the training run is wrong")
    tensors = {name: _tensor(entry, _TENSOR_FIELDS) for name, entry in _object(fields["tensors"]).items()}
    return TrainingRecord(Plan.from_dict(_object(fields["plan"])), fields["steps"], tensors)


def _text_settings(value: object) -> TextSettings:
    fields = _object(value, _TEXT_FIELDS)
    if fields.pop("digest") != _hash(fields):
        raise ValueError("the digest of the text settings is wrong")
    _object(fields["prompts"])
    try:
        return TextSettings(**fields)
    except CheckpointError as error:
        raise ValueError("the text settings are impossible") from error


def _tensor(value: object, names: set[str]) -> TensorRecord:
    fields = _object(value, names)
    axes = tuple(map(_text, _list(fields["axes"]))) if "axes" in names else None
    shape = tuple(_list(fields["shape"]))
    if not all(type(size) is int for size in shape):  # 1.0 and True equal 1 in Python, but the digest differs
        raise ValueError("a size is not a whole number")
    if not _SHA256.fullmatch(_text(fields["sha256"])):
        raise ValueError("a sha256 is not one")
    return TensorRecord(_text(fields["dtype"]), shape, fields["sha256"], axes)


def _object(value: object, names: set[str] | None = None) -> dict[str, Any]:
    """Return ``value`` if it is a JSON object with exactly the fields ``names`` (None: any fields)."""
    if not isinstance(value, dict) or (names is not None and value.keys() != names):
        raise ValueError("a part is not an object, or has other fields")
    return cast("dict[str, Any]", value)


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError("a part is not a list")
    return cast("list[Any]", value)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("a part is not text")
    return value


def _hash(content: object) -> str:
    return hashlib.sha256(_json(content).encode()).hexdigest()


def _json(content: object) -> str:
    return json.dumps(content, sort_keys=True)
