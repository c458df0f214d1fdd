"""Dialects of the articles: the bare state dict of each article's own code, in ``.pt``, ``.npz`` or ``.safetensors``.

A state dict says neither heads nor epsilon nor masking, and its sizes it only shows. All of that comes from the recipe
of the article, or from ``config``; then every name and every shape has to be right. The names are in
``article_names.py``. Linear weights of PyTorch are (out, in) and transposed here, those of Paddle are (in, out).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import ClassVar

import numpy as np

from triglot.shared import files
from triglot.shared.arrays import Array
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.dtypes import FLOATS
from triglot.shared.errors import PortingError, TriglotError
from triglot.shared.model import schema
from triglot.shared.model.config import ModelConfig
from triglot.shared.model.overrides import Given, configured
from triglot.shared.model.positions import TABLES
from triglot.shared.model.recipes import recipe
from triglot.shared.porting.containers import npz as numpy_file
from triglot.shared.porting.containers import safetensors as safetensors_file
from triglot.shared.porting.containers import torch as torch_file

from . import article_names, position_buffers

_READERS = {
    ".pt": torch_file.read,
    ".pth": torch_file.read,
    ".npz": numpy_file.read,
    ".safetensors": safetensors_file.read,
}
_WRITERS = {
    ".pt": torch_file.write,
    ".pth": torch_file.write,
    ".npz": numpy_file.write,
    ".safetensors": safetensors_file.write,
}
_SUFFIXES = ".pt, .pth, .npz or .safetensors"
_MOST_PROBLEMS = 6  # what is named of each kind in one message

# What every article's code takes as an argument, or leaves to its data. The sizes of the heads follow from the others.
_FREE = frozenset(
    {
        *("hidden_size", "layers", "decoder_layers", "heads", "key_size", "value_size", "feed_forward_size"),
        *("source_vocabulary", "source_max_length", "target_vocabulary", "target_max_length"),
        *("pad_id", "start_id", "end_id", "initializer"),
        *("embedding_dropout", "residual_dropout", "attention_dropout", "attention_output_dropout"),
        *("feed_forward_dropout", "feed_forward_output_dropout"),
    }
)


@dataclass(frozen=True)
class Article:
    """A dialect: ``read`` and ``write`` of one article's state dict.

    ``names`` is its table, ``buffers`` are its position tables with the field that says their length. ``transposed``:
    linear weights are (out, in). ``scope``: a name that may stand before those names that begin with an underscore.
    ``free``: fields of the configuration that the article's code can follow; in all others it is its ``recipe``.
    ``divided``: the heads share the hidden size, they have no size of their own.
    """

    EXPECTED: ClassVar[str] = f"the state dict of the article's own code, a file {_SUFFIXES}"

    number: str
    recipe: str
    names: Mapping[str, str]
    buffers: Mapping[str, str]
    transposed: bool = True
    scope: str = ""
    free: frozenset[str] = _FREE
    divided: bool = True

    def recognises(self, source: Path) -> bool:
        """Whether ``source`` can be a state dict, by the name of the file; what is in it, ``read`` finds out."""
        return source.is_file() and source.suffix in _READERS

    def native(self, config: ModelConfig) -> dict[str, str]:
        """Canonical name -> name in this dialect, for every parameter of ``config``.

        Raises:
            PortingError: the configuration has a parameter that the article does not have.
        """
        table: dict[str, str] = {}
        for name in schema.parameters(config):
            theirs = article_names.native(self.names, name)
            if theirs is None:
                raise PortingError(
                    f"article {self.number} has no name for {name}; the configuration belongs to another model"
                )
            table[name] = theirs
        return table

    def read(self, source: Path, config: Given = None) -> Checkpoint:
        """The state dict in ``source`` as a neutral checkpoint, under the recipe as ``config`` corrects it.

        Raises:
            PortingError: the file is damaged, or does not hold exactly the state dict of this configuration.
            ConfigError: ``config`` is wrong.
        """
        final = configured(recipe(self.recipe).to_dict(), config)
        found = _READERS[source.suffix](source)
        try:
            _check_layers(final, len(found))
            original = self._plain(found)
            tensors = {name: found[theirs] for name, theirs in original.items()}
            native = self.native(final)
            self._check(final, native, tensors, original)
            left_out = self._left_out(final, tensors, original)
        except TriglotError as error:
            raise PortingError(f"cannot port {source}: {error}") from error
        parameters = schema.parameters(final)
        return Checkpoint(
            final,
            {name: self._turned(tensors[theirs], parameters[name]) for name, theirs in native.items()},
            {name: original[theirs] for name, theirs in native.items()},
            left_out=left_out,
        )

    def write(self, given: Checkpoint, target: Path) -> None:
        """Write the state dict, with its buffers, so that the article's code loads it strictly.

        Raises:
            PortingError: the article's code would compute something else than the checkpoint, or the file's name does
                not say its format, or the format cannot hold a tensor.
            OutputError: the target cannot be written.
        """
        if target.suffix not in _WRITERS:
            raise PortingError(f"cannot write {target}: its name does not say the format; expected {_SUFFIXES}")
        self._check_expressible(given.config)
        parameters = schema.parameters(given.config)
        native = self.native(given.config)
        tensors = {theirs: self._turned(given.tensors[name], parameters[name]) for name, theirs in native.items()}
        for name, length in self._buffers(given.config).items():
            tensors[name] = position_buffers.table(given.config, length)
        files.check_target(target)
        with files.writing(target) as file:
            _WRITERS[target.suffix](file, tensors)

    def _plain(self, found: Collection[str]) -> dict[str, str]:
        """The names without the scope -> as they are in the file."""
        scoped = [name for name in found if self.scope and name.startswith(f"{self.scope}_")]
        bare = [name for name in found if self.scope and name.startswith("_")]
        if scoped and bare:
            raise PortingError(f"{scoped[0]} and {bare[0]} are of two models; keep one of them")
        return {name.removeprefix(self.scope) if name in scoped else name: name for name in found}

    def _buffers(self, config: ModelConfig) -> dict[str, int]:
        """The position tables and their lengths."""
        if config.positions not in TABLES:
            return {}
        return {name: getattr(config, field) for name, field in self.buffers.items()}

    def _check(
        self,
        config: ModelConfig,
        native: Mapping[str, str],
        tensors: Mapping[str, Array],
        original: Mapping[str, str],
    ) -> None:
        """Names in both directions, shapes and formats, all in one message."""
        parameters = schema.parameters(config)
        shapes = {theirs: self._shape(parameters[name]) for name, theirs in native.items()}
        buffers = {name: (1, length, config.hidden_size) for name, length in self._buffers(config).items()}
        known = shapes | buffers
        missing = [f"missing {name}" for name in shapes if name not in tensors]
        extra = [f"no place for {original[name]}" for name in tensors if name not in known]
        wrong = [
            f"{original[name]} has shape {tensors[name].shape}, expected {shape}"
            for name, shape in known.items()
            if name in tensors and tensors[name].shape != shape
        ]
        wrong += [
            f"{original[name]} has dtype {tensors[name].dtype}, expected one of {', '.join(FLOATS)}"
            for name in known
            if name in tensors and tensors[name].dtype not in FLOATS.values()
        ]
        if problems := [*_first(missing), *_first(extra), *_first(wrong)]:
            raise PortingError(
                f"{'; '.join(problems)}; expected the state dict of article {self.number} at the sizes of the "
                f"configuration, by default of the recipe {self.recipe}; give the sizes of this model (config=, or "
                "--config and --set on the command line)"
            )

    def _left_out(
        self, config: ModelConfig, tensors: Mapping[str, Array], original: Mapping[str, str]
    ) -> dict[str, str]:
        """The position tables of the file, each compared with ours, and how it compares."""
        reports: dict[str, str] = {}
        for name in self._buffers(config):
            if name not in tensors:
                continue
            difference, bound = position_buffers.difference(config, tensors[name])
            if difference > bound:
                raise PortingError(
                    f"{original[name]} is off by up to {difference:.2g} from the {config.positions} positions, where "
                    f"rounding explains {bound:.2g}; correct positions in the configuration, or remove {original[name]}"
                )
            reports[original[name]] = (
                f"it is the table of {config.positions} positions, at most {difference:.2g} off, and computed anew"
            )
        return reports

    def _shape(self, parameter: schema.Parameter) -> tuple[int, ...]:
        turned = self.transposed and parameter.role == "linear_weight"
        return parameter.shape[::-1] if turned else parameter.shape

    def _turned(self, tensor: Array, parameter: schema.Parameter) -> Array:
        """A copy in the layout of the other side, by what the tensor is for, never by its shape."""
        turned = self.transposed and parameter.role == "linear_weight"
        return np.array(tensor.T if turned else tensor, order="C")

    def _check_expressible(self, config: ModelConfig) -> None:
        base = recipe(self.recipe)
        lost = [
            f"{field.name} {getattr(config, field.name)!r} (only {getattr(base, field.name)!r})"
            for field in fields(config)
            if field.name not in self.free and getattr(config, field.name) != getattr(base, field.name)
        ]
        if self.divided and not lost:
            lost += [
                f"{name} {getattr(config, name)} times heads {config.heads} (only hidden_size {config.hidden_size})"
                for name in ("key_size", "value_size")
                if getattr(config, name) * config.heads != config.hidden_size
            ]
        if lost:
            raise PortingError(
                f"the dialect article-{self.recipe} cannot express {', '.join(lost)}; correct the configuration if the "
                "model allows it (config=, or --set on the command line)"
            )


def _check_layers(config: ModelConfig, tensors: int) -> None:
    layers = max(config.layers, config.decoder_layers)
    if layers > tensors:  # before as many names are made up
        raise PortingError(f"{tensors} tensors cannot be {layers} layers; the configuration belongs to another model")


def _first(problems: list[str]) -> list[str]:
    """As many as one message can hold, and the number of the others."""
    others = len(problems) - _MOST_PROBLEMS
    return problems if others <= 0 else [*problems[:_MOST_PROBLEMS], f"{others} more of that kind"]


_BOTH = ("source_max_length", "target_max_length")

ARTICLES = {
    f"article-{article.recipe}": article
    for article in (
        Article(
            "000", "translation", article_names.TRANSLATION, dict(zip(("embed_x.pe", "embed_y.pe"), _BOTH, strict=True))
        ),
        Article(
            "001",
            "dygraph",
            article_names.DYGRAPH,
            {},
            transposed=False,
            scope="encoder",  # which ERNIE gives its encoder; by default it is empty
            # The processes and the activation are arguments, and the mask is made outside.
            free=_FREE | {"pre_process", "post_process", "final_process", "activation", "masking_value"},
            divided=False,
        ),
        Article("002", "prenorm", article_names.PRENORM, {"transformer.wpe.pe": "source_max_length"}),
        Article(
            "003", "annotated", article_names.ANNOTATED, dict(zip(("src_pos.pe", "tgt_pos.pe"), _BOTH, strict=True))
        ),
        Article("004", "multihead", article_names.MULTIHEAD, {}),
    )
}
