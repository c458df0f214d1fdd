"""The neutral checkpoint: a configuration and its tensors, in memory, as one ``.npz`` file, or as a folder of several.

The file holds the tensors in order of their names (``npz.py``) and, as its last member, ``manifest.json``
(``manifest.py``). A folder has the same content in several files (``shards.py``). A training run can be stored beside
the tensors (``training_state.py``). ``docs/checkpoint.md`` describes the format for other readers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from triglot.shared import files
from triglot.shared.arrays import BFLOAT16, FLOATS, HALVES, Array
from triglot.shared.errors import CheckpointError, OutputError
from triglot.shared.model import schema
from triglot.shared.model.config import ModelConfig
from triglot.shared.training.plan import Moments, Training

from . import manifest as manifests
from . import npz, shards, training_state
from .checksums import VerifiedTensors, with_checksum, without_verifying
from .manifest import Manifest, TensorRecord, TrainingRecord
from .text import TextSettings

SUFFIX = ".npz"

_DTYPE_NAMES = {dtype: name for name, dtype in FLOATS.items()}  # dtype.name is slow
_LONGEST_REASON = 10_000  # a hostile file can name megabytes of wrong tensors
_LONGEST_SOURCE_NAME = 200
_BLOCK = 1 << 20  # numbers

Verify = Literal["open", "touched", "full"]


@dataclass(frozen=True, eq=False, repr=False)
class Checkpoint:
    """A configuration and its tensors: ``tensors`` maps canonical names to arrays.

    ``source_names`` gives, for a ported checkpoint, the name that each tensor had before. ``aliases`` are further names
    of tied tensors, which are stored once: alias -> name in ``tensors``. ``training`` holds what is needed to resume a
    training of these weights; ``text`` says how text becomes tokens for a sentence embedding. The digest covers the
    model only. For a checkpoint that was just ported, ``left_out`` names the parts of the source that were not
    kept, and why, ``transforms`` says in words what was done to the other tensors, and ``tokenizer`` has the files of
    its tokenizer, by name; files store none of these three.

    Raises:
        CheckpointError: the tensors are not exactly those of the schema, a source name is not text, or the training run
            or the text settings belong to another model.
    """

    config: ModelConfig
    tensors: Mapping[str, Array]
    source_names: Mapping[str, str] = field(default_factory=dict[str, str])
    training: Training | None = None
    left_out: Mapping[str, str] = field(default_factory=dict[str, str])
    transforms: Mapping[str, str] = field(default_factory=dict[str, str])
    text: TextSettings | None = None
    tokenizer: Mapping[str, Path] = field(default_factory=dict[str, Path])

    def __post_init__(self) -> None:
        schema.verify(self.config, without_verifying(self.tensors))
        _check_source_names(self)
        _check_training(self)
        _check_text(self)

    @property
    def aliases(self) -> dict[str, str]:
        """Further names of tied tensors: alias -> name in ``tensors``."""
        return schema.aliases(self.config)

    @property
    def digest(self) -> str:
        """The sha256 of configuration, names, shapes, dtypes and numbers. It does not depend on the container."""
        records = {name: TensorRecord.of(*with_checksum(self.tensors, name)) for name in self.tensors}
        return manifests.digest(self.config, records)


def check_finite(checkpoint: Checkpoint, dtype: str) -> None:
    """Refuse weights that no model in ``dtype`` can compute with.

    Raises:
        CheckpointError: a tensor holds NaN or infinity, or a number that ``dtype`` cannot hold.
    """
    for name, tensor in checkpoint.tensors.items():
        check_finite_tensor(name, tensor, dtype)


def check_finite_tensor(name: str, tensor: Array, dtype: str) -> None:
    """Check one tensor as ``check_finite`` does."""
    numbers = tensor.reshape(-1)
    for start in range(0, numbers.size, _BLOCK):  # a boolean per number of a whole table would take megabytes
        block = numbers[start : start + _BLOCK]
        if not np.isfinite(block).all():
            raise CheckpointError(
                f"{name} holds NaN or infinity; expected finite numbers; use a checkpoint from before it diverged"
            )
        if np.can_cast(block.dtype, FLOATS[dtype]):
            continue
        with np.errstate(over="ignore"):
            if not np.isfinite(block.astype(FLOATS[dtype])).all():
                wider = "float32" if dtype in HALVES and np.isfinite(block.astype(np.float32)).all() else "float64"
                raise CheckpointError(f"{name} holds numbers that do not fit into {dtype}; use dtype {wider}")


def check_target(path: Path, shard_size: int | None = None) -> None:
    """Check, before any work is done, that a checkpoint can be written to ``path``: a file, or a folder of shards.

    Raises:
        OutputError: nothing can be written there, the name of a file does not end in .npz, or that of a folder does.
    """
    if shard_size is not None:
        if path.suffix == SUFFIX:
            raise OutputError(
                f"cannot write {path}: it would become a folder, but {SUFFIX} is the suffix of a file; choose a name "
                "without the suffix, or omit shard_size"
            )
        files.check_folder(path)
        return
    files.check_writable(path)
    if path.suffix != SUFFIX and not (path.exists() and not path.is_file()):  # a device may have any name
        raise OutputError(
            f"cannot write {path}: the name of a neutral checkpoint ends in {SUFFIX}; rename it, or, for the files of "
            "another library, use triglot port with --target-dialect"
        )


def save(checkpoint: Checkpoint, path: str | Path, shard_size: int | None = None) -> None:
    """Write ``checkpoint`` to the file ``path``, completely or not at all.

    With a ``shard_size``, ``path`` is a new folder of files that each hold at most that many bytes of tensors. A larger
    tensor has a file of its own.

    Raises:
        OutputError: the target cannot be written.
    """
    path = Path(path).absolute() if shard_size is not None else Path(path)  # "." has no parent
    check_target(path, shard_size)
    content = _Content(checkpoint)
    if shard_size is not None:
        shards.write(path, content, shard_size)
        return
    with files.writing(path) as file:
        if not file.seekable():
            raise OutputError(f"cannot write {path}: a checkpoint cannot be written to a pipe; name a file")
        with npz.Writer(file) as writer:
            for name in content.sizes:
                writer.write_array(name, content.read(name))
            writer.write_bytes(manifests.MEMBER, manifests.to_bytes(path, content.manifest().to_json()))


class _Content:
    """The content of a stored checkpoint: its arrays one by one, in the order of their names, then its manifest."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._parameters = schema.parameters(checkpoint.config)
        self._members = training_state.arrays(checkpoint.training) if checkpoint.training else {}
        self._records: dict[str, TensorRecord] = {}
        arrays = {**without_verifying(checkpoint.tensors), **self._members}
        self.sizes = {name: arrays[name].nbytes for name in sorted(arrays)}

    def read(self, name: str) -> Array:
        """Return an array, and keep its record for the manifest."""
        is_member = name in self._members
        array, checksum = with_checksum(self._members if is_member else self._checkpoint.tensors, name)
        self._records[name] = TensorRecord.of(array, checksum, None if is_member else self._parameters[name].axes)
        return array

    def manifest(self) -> Manifest:
        """Return the manifest, after all arrays were read."""
        records = {name: record for name, record in self._records.items() if name not in self._members}
        training = self._checkpoint.training
        training_record = training and TrainingRecord(
            training.plan, training.moments.steps, {name: self._records[name] for name in sorted(self._members)}
        )
        source = self._checkpoint
        return Manifest(source.config, records, source.source_names, training_record, source.text)


def load(path: str | Path, verify: Verify = "touched") -> Checkpoint:
    """Open the checkpoint at ``path``, a file or a folder of shards. Its tensors are mapped, not read.

    The structure of the files and the digest of the manifest are always verified. ``verify`` says when a tensor is
    compared with its sha256: "open" never, "touched" when it is first read, "full" now.

    Raises:
        CheckpointError: ``path`` is not a checkpoint, is damaged, or has a newer schema.
    """
    if verify not in get_args(Verify):
        raise CheckpointError(f"verify is {verify!r}; expected one of {', '.join(get_args(Verify))}")
    path = Path(path)
    if path.is_dir():
        manifest, arrays, paths = shards.read(path)
        in_order = True
    else:
        manifest, arrays, in_order = _read_file(path)
        paths = dict.fromkeys(arrays, path)
    members = {name: arrays.pop(name) for name in list(arrays) if name.startswith(training_state.PREFIX)}
    for name, record in manifest.tensors.items():
        if record.dtype == BFLOAT16.name and name in arrays and arrays[name].dtype == np.uint16:
            arrays[name] = arrays[name].view(BFLOAT16)
    try:
        schema.verify(manifest.config, arrays)
    except CheckpointError as error:
        raise npz.unreadable(path, _shortened(str(error))) from error
    if not in_order:
        raise npz.unreadable(path, f"its members are not its tensors in order of their names and {manifests.MEMBER}")
    axes = {name: parameter.axes for name, parameter in schema.parameters(manifest.config).items()}
    _compare(path, arrays, manifest.tensors, axes)
    training = _load_training(path, paths, manifest, members, verify)
    tensors = _mapped(paths, arrays, manifest.tensors, verify)
    try:
        return Checkpoint(manifest.config, tensors, manifest.source_names, training, text=manifest.text)
    except CheckpointError as error:  # the text settings of another model
        raise npz.unreadable(path, str(error)) from error


def _read_file(path: Path) -> tuple[Manifest, dict[str, Array], bool]:
    """Return the manifest and the arrays of one file, and whether its members are in order."""
    reader = npz.Reader(path)
    if manifests.MEMBER not in reader.members:
        raise npz.unreadable(
            path,
            f"member {manifests.MEMBER} is missing, so it is not a neutral checkpoint",
            f"{npz.RESTORE}, or port the file first (triglot port)",
        )
    content = reader.read_bytes(manifests.MEMBER, manifests.LONGEST)
    fields = manifests.decode(path, manifests.MEMBER, content, len(reader.members))
    manifest = manifests.parse(path, manifests.MEMBER, fields, len(reader.names))
    in_order = reader.members == [*(f"{name}.npy" for name in sorted(reader.names)), manifests.MEMBER]
    return manifest, {name: reader.array(name) for name in reader.names}, in_order


def _load_training(
    path: Path, paths: Mapping[str, Path], manifest: Manifest, members: Mapping[str, Array], verify: Verify
) -> Training | None:
    record = manifest.training
    if record is None and not members:
        return None
    if record is None:
        raise npz.unreadable(path, f"{manifests.MEMBER} does not mention its training")
    if wrong := sorted(training_state.problems(schema.parameters(manifest.config), record.steps, members)):
        raise npz.unreadable(path, _shortened("; ".join(wrong)))
    _compare(path, members, record.tensors, {})
    return training_state.restore(record.plan, record.steps, _mapped(paths, members, record.tensors, verify))


def _compare(
    path: Path,
    arrays: Mapping[str, Array],
    records: Mapping[str, TensorRecord],
    axes: Mapping[str, tuple[str, ...]],
) -> None:
    """Refuse records that do not describe the arrays."""
    for name, array in arrays.items():
        record = records.get(name)
        facts = (_DTYPE_NAMES.get(array.dtype), array.shape, axes.get(name))
        if record is None or (record.dtype, record.shape, record.axes) != facts:
            raise npz.unreadable(path, f"{manifests.MEMBER} and the tensor {name} disagree")
    if records.keys() != arrays.keys():
        raise npz.unreadable(path, f"{manifests.MEMBER} names tensors that the file does not have")


def _mapped(
    paths: Mapping[str, Path], arrays: Mapping[str, Array], records: Mapping[str, TensorRecord], verify: Verify
) -> VerifiedTensors:
    checksums = {} if verify == "open" else {name: record.sha256 for name, record in records.items()}
    tensors = VerifiedTensors(paths, arrays, checksums)
    if verify == "full":
        tensors.verify_all()
    return tensors


def _check_source_names(checkpoint: Checkpoint) -> None:
    names = checkpoint.tensors.keys() | checkpoint.aliases.keys()
    for name, source in checkpoint.source_names.items():
        if name not in names:
            raise CheckpointError(f"source_names has {name!r}, which is not a tensor of the checkpoint; remove it")
        # The manifest parser counts these marks, and refuses a file that has too many.
        if not isinstance(source, str) or len(source) > _LONGEST_SOURCE_NAME or any(mark in source for mark in "{[,"):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise CheckpointError(
                f"source_names of {name} is {source!r:.80}; expected a name of at most {_LONGEST_SOURCE_NAME} "
                "characters without commas and opening brackets"
            )


def _check_training(checkpoint: Checkpoint) -> None:
    training = checkpoint.training
    if training is None:
        return
    moments = training.moments
    unread = Moments(moments.steps, without_verifying(moments.first), without_verifying(moments.second))
    members = training_state.arrays(Training(training.plan, unread, training.history))
    if wrong := sorted(training_state.problems(schema.parameters(checkpoint.config), moments.steps, members)):
        raise CheckpointError(
            f"the training run does not match the configuration: {'; '.join(wrong)}; pass the state saved with "
            "this model"
        )


def _check_text(checkpoint: Checkpoint) -> None:
    text, config = checkpoint.text, checkpoint.config
    if text is None:
        return
    if "sentence_embedding" not in config.heads_on_top:
        raise CheckpointError("the text settings belong to a sentence_embedding, which the model lacks; leave them out")
    if text.max_tokens > config.source_max_length:
        raise CheckpointError(
            f"max_tokens is {text.max_tokens}; expected at most source_max_length {config.source_max_length}; reduce it"
        )


def _shortened(reason: str) -> str:
    return reason if len(reason) < _LONGEST_REASON else f"{reason[:_LONGEST_REASON]} ..."
