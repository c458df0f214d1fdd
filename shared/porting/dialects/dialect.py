"""What every dialect has: an interface, and a table of its names and its layout of tensors."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from triglot.shared.arrays import FLOATS, Array
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.errors import PortingError
from triglot.shared.model import schema
from triglot.shared.model.config import ModelConfig
from triglot.shared.model.recipes import ConfigOverride

_MOST_PROBLEMS = 6  # of each kind in one message
_LAYER = re.compile(r"\.layers\.(\d+)\.")


@dataclass(frozen=True)
class Dialect:
    """How a library names and lays out the tensors of a model.

    ``expected`` describes its files, for messages. ``recognises`` decides by the path whether a source can be in this
    dialect. ``read`` takes the configuration that completes or corrects the source's own. ``check_target`` refuses,
    before any work is done, a path that ``write`` cannot write.

    ``must_be_named`` says that a source never counts as this dialect unless the user says so, because models that
    compute something else have files that look the same.
    """

    name: str
    expected: str
    recognises: Callable[[Path], bool]
    read: Callable[[Path, ConfigOverride], Checkpoint]
    write: Callable[[Checkpoint, Path], None]
    check_target: Callable[[Path], None]
    must_be_named: bool = False


@dataclass(frozen=True)
class Table:
    """The names and the layout of the tensors of one dialect, to be read in both directions.

    ``modules`` maps canonical modules, or single parameters, to their names in the dialect. ``N`` in a canonical name
    is the number of a layer, from 0. In the dialect's name ``{index}`` is that number, ``{count}`` counts from 1, and
    ``{first_is_l}`` counts from 1 too, but the first is the letter l, as in article 000. ``weight`` and ``bias`` end
    the names of linear layers and embeddings, ``norm_scale`` and ``norm_bias`` those of norms.

    Linear weights are (in, out) in a checkpoint; a dialect that is ``transposed`` stores them as (out, in). The schema
    says which weights are linear; a shape never does, because a square weight has the same shape either way.
    """

    dialect: str
    modules: Mapping[str, str]
    weight: str = ".weight"
    bias: str = ".bias"
    norm_scale: str = ".weight"
    norm_bias: str = ".bias"
    transposed: bool = True

    def names(self, config: ModelConfig) -> dict[str, str]:
        """Return the dialect's name of every parameter of ``config``, by canonical name.

        Raises:
            PortingError: the dialect has no name for a parameter.
        """
        return {name: self._name(name) for name in schema.parameters(config)}

    def to_canonical(self, config: ModelConfig, tensors: Mapping[str, Array]) -> dict[str, Array]:
        """Return copies of ``tensors`` under canonical names and in canonical layout."""
        parameters, names = schema.parameters(config), self.names(config)
        return {name: self._copy(tensors[names[name]], parameters[name]) for name in names}

    def from_canonical(self, checkpoint: Checkpoint) -> dict[str, Array]:
        """Return copies of the checkpoint's tensors under the names and in the layout of this dialect."""
        parameters, names = schema.parameters(checkpoint.config), self.names(checkpoint.config)
        return {names[name]: self._copy(checkpoint.tensors[name], parameters[name]) for name in names}

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
        layers = max(config.layers, config.decoder_layers)
        if layers > len(tensors):  # refused before that many names are generated
            raise PortingError(
                f"{len(tensors)} tensors cannot be {layers} layers; pass the configuration of this model"
            )
        names = self.names(config)
        shapes = {
            names[name]: parameter.shape[::-1] if self._is_transposed(parameter) else parameter.shape
            for name, parameter in schema.parameters(config).items()
        }
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

    def _name(self, canonical: str) -> str:
        parameter = _LAYER.sub(".layers.N.", canonical)
        module, leaf = parameter.rsplit(".", 1)
        if parameter in self.modules:
            pattern = self.modules[parameter]
        elif module in self.modules:
            bias = self.norm_bias if module.endswith("norm") else self.bias
            pattern = self.modules[module] + {"weight": self.weight, "scale": self.norm_scale, "bias": bias}[leaf]
        else:
            raise PortingError(
                f"the dialect {self.dialect} has no name for {canonical}; pass the configuration of a model that this "
                "dialect expresses"
            )
        layer = _LAYER.search(canonical)
        index = int(layer[1]) if layer else 0
        return pattern.format(index=index, count=index + 1, first_is_l=index + 1 if index else "l")

    def _is_transposed(self, parameter: schema.Parameter) -> bool:
        return self.transposed and parameter.role == "linear_weight"

    def _copy(self, tensor: Array, parameter: schema.Parameter) -> Array:
        return np.array(tensor.T if self._is_transposed(parameter) else tensor, order="C")


def attention(path: str, dialect_path: str, projections: tuple[str, str, str, str]) -> dict[str, str]:
    """Return the entries of a table for query, key, value and output of an attention module."""
    names = zip(("query", "key", "value", "output"), projections, strict=True)
    return {f"{path}.{name}": dialect_path + projection for name, projection in names}


def inexpressible(dialect: str, losses: list[str]) -> PortingError:
    """Return the error for a model with fields that ``dialect`` cannot express."""
    return PortingError(
        f"the dialect {dialect} cannot express {', '.join(losses)}; write another dialect, or override these fields "
        "if the model computes the same without them (config=, or --set on the command line)"
    )


def _first(problems: list[str], kind: str) -> list[str]:
    others = len(problems) - _MOST_PROBLEMS
    return problems if others <= 0 else [*problems[:_MOST_PROBLEMS], f"{others} more {kind}"]
