"""The plan of a port: what becomes of every tensor of the source."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from triglot.shared.checkpoint import Checkpoint
from triglot.shared.checkpoint.manifest import TensorRecord, digest

from .conversion import Losses
from .dialects import neutral, sentence_transformers
from .dialects.table import UNCHANGED
from .port import find_dialect

SCHEMA = "triglot.port/1"


@dataclass(frozen=True)
class File:
    """A source or a target.

    ``sign``: the name by which the dialect was recognised; empty if the user named it. A recipe has no dialect.
    """

    path: str
    dialect: str
    sign: str = ""


@dataclass(frozen=True)
class PlannedName:
    """The name of a tensor in a file, and in words how its layout there differs from the canonical one."""

    name: str
    transform: str = UNCHANGED


@dataclass(frozen=True)
class PlannedTensor:
    """A parameter: its canonical name, shape, dtype and sha256, and where it is in the source and in the target."""

    name: str
    source: PlannedName
    target: PlannedName
    shape: tuple[int, ...]
    dtype: str
    sha256: str

    def to_json(self) -> dict[str, Any]:
        """Return the tensor as JSON."""
        return asdict(self) | {"shape": list(self.shape)}


@dataclass(frozen=True)
class PortPlan:
    """What a port does.

    ``left_out`` names what the source has and the target does not, ``added`` what only the target has, with the
    reasons. ``losses`` are those of a conversion.
    """

    source: File
    target: File
    config: Mapping[str, Any]
    digest: str
    tensors: tuple[PlannedTensor, ...]
    left_out: Mapping[str, str]
    added: Mapping[str, str]
    losses: Losses | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON."""
        return {
            "schema": SCHEMA,
            "source": asdict(self.source),
            "target": asdict(self.target),
            "config": dict(self.config),
            "digest": self.digest,
            "tensors": [tensor.to_json() for tensor in self.tensors],
            "left_out": dict(self.left_out),
            "added": dict(self.added),
            "losses": self.losses and asdict(self.losses),
        }


def describe(
    checkpoint: Checkpoint,
    records: Mapping[str, TensorRecord],
    source: File,
    target: File,
    losses: Losses | None = None,
) -> PortPlan:
    """Return the plan of the port of ``checkpoint``, which was read from ``source``, to ``target``.

    ``records`` are those that ``porting.write`` returned.
    """
    is_neutral = source.dialect == neutral.DIALECT.name
    # A neutral file keeps the names that it was ported from, which are not its own.
    names: Mapping[str, str] = {} if is_neutral else checkpoint.source_names
    layout = find_dialect(target.dialect).layout(checkpoint, Path(target.path))
    tensors = tuple(
        PlannedTensor(
            name,
            PlannedName(names.get(name, name), checkpoint.transforms.get(name, UNCHANGED)),
            PlannedName(place.name, place.describe()),
            records[name].shape,
            records[name].dtype,
            records[name].sha256,
        )
        for name, place in layout.places.items()
    )
    left_out = dict(checkpoint.left_out)
    if checkpoint.training and target.dialect != neutral.DIALECT.name:
        left_out["the training state"] = f"the dialect {target.dialect} does not hold it"
    if checkpoint.text and target.dialect not in (neutral.DIALECT.name, sentence_transformers.DIALECT.name):
        left_out["the text settings"] = f"the dialect {target.dialect} does not hold prompts and the maximum length"
    sha256 = digest(checkpoint.config, records)
    return PortPlan(source, target, checkpoint.config.to_dict(), sha256, tensors, left_out, layout.added, losses)
