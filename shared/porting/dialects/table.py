"""Tables of names: how a dialect names and lays out the tensors of a model, to be read in both directions."""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from triglot.shared.arrays import FLOATS, Array
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.checkpoint.checksums import LazyTensors, stand_in, without_verifying
from triglot.shared.errors import PortingError
from triglot.shared.model import schema
from triglot.shared.model.config import ModelConfig

UNCHANGED, TRANSPOSED = "as it is", "transposed"  # what is done to a tensor
_MOST_PROBLEMS = 6  # of each kind in one message
_LAYER = re.compile(r"\.layers\.(\d+)\.")
_NUMBER = re.compile(r"\{(index|count|first_is_l)\}")


class Place(NamedTuple):
    """Where a parameter is in a file: in the tensor ``name`` of this ``shape``, which may be ``transposed``.

    A packed tensor holds several parameters. This one is from ``start`` to ``stop`` along its ``axis``.
    """

    name: str
    shape: tuple[int, ...]
    transposed: bool
    axis: int
    start: int
    stop: int

    @property
    def packed(self) -> bool:
        """Whether the tensor holds other parameters as well."""
        return self.stop - self.start != self.shape[self.axis]

    def view(self, tensor: Array) -> Array:
        """Return the parameter in canonical layout, as a view of the tensor of the file."""
        rows = (*(slice(None),) * self.axis, slice(self.start, self.stop))
        part = tensor[rows] if self.packed else tensor
        return part.T if self.transposed else part

    def describe(self) -> str:
        """Return in words what is done to the tensor of the file."""
        words = [f"{self.start} to {self.stop} of axis {self.axis}"] * self.packed + [TRANSPOSED] * self.transposed
        return ", ".join(words) or UNCHANGED


@dataclass(frozen=True)
class Table:
    """The names and the layout of the tensors of one dialect.

    ``modules`` maps canonical modules, or single parameters, to their names in the dialect. ``N`` in a canonical name
    is the number of a layer, from 0. In the dialect's name ``{index}`` is that number, ``{count}`` counts from 1, and
    ``{first_is_l}`` counts from 1 too, but the first is the letter l, as in article 000. ``weight`` and ``bias`` end
    the names of linear layers, ``table`` those of embeddings, ``norm_scale`` and ``norm_bias`` those of norms. They are
    appended, unless the name has ``{leaf}``, which stands for "weight" or "bias". Modules with one name are packed:
    their tensors are concatenated along the out axis, in the order of the schema.

    Linear weights are (in, out) in a checkpoint; a dialect that is ``transposed`` stores them as (out, in). The schema
    says which weights are linear; a shape never does, because a square weight has the same shape either way. The
    parameters in ``turned`` are stored the other way round.
    """

    dialect: str
    modules: Mapping[str, str]
    weight: str = ".weight"
    bias: str = ".bias"
    table: str = ".weight"
    norm_scale: str = ".weight"
    norm_bias: str = ".bias"
    transposed: bool = True
    turned: Collection[str] = ()

    def places(self, config: ModelConfig) -> dict[str, Place]:
        """Return the place of every parameter of ``config``, by canonical name.

        Raises:
            PortingError: the dialect has no name for a parameter.
        """
        places: dict[str, Place] = {}
        sizes: Counter[str] = Counter()
        for canonical, parameter in schema.parameters(config).items():
            name = self.name(canonical, parameter.role)
            if not name:
                raise PortingError(
                    f"the dialect {self.dialect} has no name for {canonical}; pass the configuration of a model that "
                    "this dialect expresses"
                )
            transposed = (self.transposed and parameter.role == "linear_weight") != (canonical in self.turned)
            shape = parameter.shape[::-1] if transposed else parameter.shape
            axis = 0 if transposed else len(shape) - 1  # the out axis
            start, sizes[name] = sizes[name], sizes[name] + shape[axis]
            places[canonical] = Place(name, shape, transposed, axis, start, sizes[name])
        return {canonical: _whole(place, sizes[place.name]) for canonical, place in places.items()}

    def transforms(self, config: ModelConfig) -> dict[str, str]:
        """Return in words what ``to_canonical`` does, by canonical name."""
        return {canonical: place.describe() for canonical, place in self.places(config).items()}

    def to_canonical(self, config: ModelConfig, tensors: Mapping[str, Array]) -> dict[str, Array]:
        """Return views of ``tensors`` under canonical names and in canonical layout."""
        return {canonical: place.view(tensors[place.name]) for canonical, place in self.places(config).items()}

    def from_canonical(self, checkpoint: Checkpoint) -> "NativeTensors":
        """Return the tensors of a checkpoint under the names and in the layout of this dialect."""
        return NativeTensors(self.places(checkpoint.config), checkpoint.tensors)

    def names(self, config: ModelConfig) -> dict[str, str]:
        """Return the dialect's name of every parameter of ``config``, by canonical name.

        Raises:
            PortingError: the dialect has no name for a parameter.
        """
        return {canonical: place.name for canonical, place in self.places(config).items()}

    def layers(self, stack: str, names: Iterable[str]) -> int:
        """Return how many layers of ``stack``, "encoder" or "decoder", occur in the ``names`` of a file."""
        patterns = [name for path, name in self.modules.items() if path.startswith(f"{stack}.layers.N.")]
        if not patterns:
            return 0
        start, number = _NUMBER.split(patterns[0])[:2]
        found = re.compile(re.escape(start) + r"(\d{1,6}|l)(?=[._])")
        labels = {match[1] for name in names if (match := found.match(name))}
        first = 0 if number == "index" else 1
        return max((1 if label == "l" else int(label) + 1 - first for label in labels), default=0)

    def shape(self, canonical: str, role: schema.Role, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, int] | None:
        """Return the canonical shape of a parameter with two axes, from the ``shapes`` of a file.

        Return None if the file does not have it. The parts of a packed tensor are equal.
        """
        name = self.name(canonical, role)
        if len(shapes.get(name, ())) != 2:
            return None
        module = _LAYER.sub(".layers.N.", canonical).rpartition(".")[0]
        parts = [*self.modules.values()].count(self.modules[module]) if module in self.modules else 1
        rows, columns = shapes[name]
        if role == "linear_weight":
            return (columns, rows // parts) if self.transposed else (rows, columns // parts)
        return rows, columns

    def check(
        self,
        config: ModelConfig,
        tensors: Mapping[str, Array],
        names_in_file: Mapping[str, str],
        advice: str,
        *,
        optional: Mapping[str, tuple[int, ...]] | None = None,
        hint: Callable[[str], str] = lambda name: "",
    ) -> None:
        """Compare ``tensors`` with those of ``config``: names in both directions, shapes, dtypes.

        ``optional`` gives the shapes of tensors that may be missing. ``hint`` explains an unexpected name, ``advice``
        ends the message.

        Raises:
            PortingError: lists every difference, at most six of each kind.
        """
        check_layers(config, tensors)
        shapes = {place.name: place.shape for place in self.places(config).values()}
        missing = [f"missing {name}" for name in shapes if name not in tensors]
        shapes |= optional or {}
        unexpected = [f"unexpected {names_in_file[name]}{hint(name)}" for name in tensors if name not in shapes]
        present = [(names_in_file[name], tensors[name], shape) for name, shape in shapes.items() if name in tensors]
        wrong = [
            f"{name} has shape {tensor.shape}, expected {shape}"
            for name, tensor, shape in present
            if tensor.shape != shape
        ]
        wrong += [
            f"{name} has dtype {tensor.dtype}, expected one of {', '.join(FLOATS)}"
            for name, tensor, _ in present
            if tensor.dtype not in FLOATS.values()
        ]
        if problems := [*_first(missing, "missing"), *_first(unexpected, "unexpected"), *_first(wrong, "wrong")]:
            raise PortingError(f"{'; '.join(problems)}; {advice}")

    def name(self, canonical: str, role: schema.Role) -> str:
        """Return the dialect's name of a parameter, from its canonical name and its role; empty if it has none."""
        parameter = _LAYER.sub(".layers.N.", canonical)
        module, leaf = parameter.rsplit(".", 1)
        if parameter in self.modules:
            pattern = self.modules[parameter]
        elif module in self.modules:
            pattern = self.modules[module]
            norm_bias = self.norm_bias if module.endswith("norm") else self.bias
            ends = {"embedding": self.table, "linear_weight": self.weight, "scale": self.norm_scale, "bias": norm_bias}
            pattern += "" if "{leaf}" in pattern else ends[role]
        else:
            return ""
        layer = _LAYER.search(canonical)
        index = int(layer[1]) if layer else 0
        return pattern.format(index=index, count=index + 1, first_is_l=index + 1 if index else "l", leaf=leaf)


class NativeTensors(LazyTensors):
    """The tensors of a checkpoint as a dialect names and lays them out. Each is made when it is asked for.

    Raises:
        PortingError: tensors of several dtypes belong into a packed one.
    """

    def __init__(self, places: Mapping[str, Place], tensors: Mapping[str, Array]) -> None:
        self._tensors = tensors
        self._parts: dict[str, list[tuple[str, Place]]] = {}
        for canonical, place in places.items():
            self._parts.setdefault(place.name, []).append((canonical, place))
        unread = without_verifying(tensors)
        self.unread = {}
        for name, parts in self._parts.items():
            dtypes = dict.fromkeys(unread[canonical].dtype for canonical, _ in parts)
            if len(dtypes) > 1:
                raise PortingError(
                    f"{name} would pack tensors of {' and '.join(map(str, dtypes))} into one; convert them to the same "
                    "dtype first"
                )
            self.unread[name] = stand_in(next(iter(dtypes)), parts[0][1].shape)

    def __getitem__(self, name: str) -> Array:
        place = self._parts[name][0][1]
        parts = [self._tensors[canonical] for canonical, _ in self._parts[name]]
        native = [part.T if place.transposed else part for part in parts]
        return np.concatenate(native, place.axis) if place.packed else native[0]


def attention(path: str, dialect_path: str, projections: tuple[str, str, str, str]) -> dict[str, str]:
    """Return the entries of a table for query, key, value and output of an attention module."""
    names = zip(("query", "key", "value", "output"), projections, strict=True)
    return {f"{path}.{name}": dialect_path + projection for name, projection in names}


def check_layers(config: ModelConfig, tensors: Collection[str]) -> None:
    """Refuse a number of layers that the tensors cannot have, before that many names are generated.

    Raises:
        PortingError: there are more layers than tensors.
    """
    layers = max(config.layers, config.decoder_layers)
    if layers > len(tensors):
        raise PortingError(f"{len(tensors)} tensors cannot be {layers} layers; pass the configuration of this model")


def _whole(place: Place, size: int) -> Place:
    """Return the place in a tensor of this ``size`` along its axis."""
    shape = list(place.shape)
    shape[place.axis] = size
    return place._replace(shape=tuple(shape))


def _first(problems: list[str], kind: str) -> list[str]:
    others = len(problems) - _MOST_PROBLEMS
    return problems if others <= 0 else [*problems[:_MOST_PROBLEMS], f"{others} more {kind}"]
