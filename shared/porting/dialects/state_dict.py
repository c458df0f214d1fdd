"""Dialects that are a table and little more: the bare state dict of a module, in any container.

Its tensors show the sizes of the model. What no tensor shows (heads, epsilon, activation), the user has to say.
"""

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triglot.shared.arrays import Array
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.errors import PortingError
from triglot.shared.model.config import ModelConfig
from triglot.shared.model.recipes import ConfigOverride, configured, recipes
from triglot.shared.porting import containers
from triglot.shared.porting.source import Source

from .dialect import Dialect, Layout, inexpressible, unanswered
from .sizes import from_shapes, of_one_head
from .table import Table

# Sizes, and what only training uses: every dialect expresses any value of these fields.
FREE_FIELDS = frozenset(
    {
        *("hidden_size", "layers", "decoder_layers", "heads", "key_size", "value_size", "feed_forward_size"),
        *("source_vocabulary", "source_max_length", "target_vocabulary", "target_max_length"),
        *("pad_id", "start_id", "end_id", "initializer"),
        *("embedding_dropout", "residual_dropout", "attention_dropout", "attention_output_dropout"),
        *("feed_forward_dropout", "feed_forward_output_dropout"),
    }
)


@dataclass(frozen=True)
class StateDict:
    """The state dict of one kind of module.

    ``table`` has its names, ``family`` the fields of a configuration that all its models share, and ``free`` those that
    may have any value. ``asked`` are the fields that the user has to give, because no tensor shows them.
    ``advice`` ends the message about tensors that do not match. ``heads_divide_hidden_size``: the heads
    share the hidden size between them. ``signs``: the canonical names of tensors by which files are recognised.
    """

    table: Table
    expected: str
    family: Mapping[str, Any]
    advice: str
    asked: tuple[str, ...] = ()
    free: frozenset[str] = FREE_FIELDS
    heads_divide_hidden_size: bool = True
    signs: tuple[str, ...] = ("encoder.layers.0.attention.query.weight", "attention.query.weight")

    @property
    def dialect(self) -> Dialect:
        """The dialect of these state dicts."""
        return Dialect(
            self.table.dialect,
            f"{self.expected}, a file {containers.SUFFIXES}",
            self.sign,
            self.read,
            self.write,
            containers.check_target,
            self.layout,
            reads_folders=False,
            remark=self.remark,
        )

    def sign(self, source: Source) -> str:
        """Return the name of the tensor by which this dialect is recognised, if the source has it."""
        if source.is_folder or source.is_neutral:
            return ""
        names = self.plain_names(source.tensors)
        for canonical in self.signs:
            name = self.table.name(canonical, "linear_weight")
            if name in names:
                return names[name]
        return ""

    def read(self, source: Source, override: ConfigOverride = None) -> Checkpoint:
        """Read the state dict ``source``; ``override`` says what its tensors do not show.

        Raises:
            PortingError: the file is damaged, or is not exactly the state dict of this configuration.
            ConfigError: ``override`` is wrong.
        """
        ignored = self.ignored(source.tensors)
        names_in_file = self.plain_names([name for name in source.tensors if name not in ignored])
        tensors = {name: source.tensors[name_in_file] for name, name_in_file in names_in_file.items()}
        try:
            config = self.configure(tensors, override)
            self.table.check(config, tensors, names_in_file, self.advice, optional=self.buffers(config))
            left_out = ignored | self.left_out(config, tensors, names_in_file)
        except PortingError as error:
            raise PortingError(f"cannot port {source.path}: {error}") from error
        source_names = {name: names_in_file[native] for name, native in self.table.names(config).items()}
        canonical, transforms = self.table.to_canonical(config, tensors), self.table.transforms(config)
        return Checkpoint(config, canonical, source_names, left_out=left_out, transforms=transforms)

    def write(self, checkpoint: Checkpoint, target: Path) -> None:
        """Write the state dict, so that its module loads it strictly.

        Raises:
            PortingError: the module would compute something else, the suffix of ``target`` is unknown, or its container
                cannot hold a tensor.
            OutputError: the target cannot be written.
        """
        containers.check_target(target)
        self.check_expressible(checkpoint.config)
        tensors = self.to_write(checkpoint)
        containers.write(target, tensors)

    def layout(self, checkpoint: Checkpoint, target: Path) -> Layout:
        """See ``Dialect.layout``."""
        config = checkpoint.config
        self.check_expressible(config)
        containers.check(target, self.to_write(checkpoint))
        added = dict.fromkeys(self.buffers(config), "a buffer of the module, computed from the configuration")
        return Layout(self.table.places(config), added)

    def remark(self, checkpoint: Checkpoint) -> str:
        """See ``Dialect.remark``. It says how to read the target later."""
        same = [name for name, config in recipes().items() if config == checkpoint.config]
        if same:
            return f"the target does not store the configuration; pass --config {same[0]} when you read it"
        return (
            "the target does not store the configuration; run triglot inspect SOURCE --json config.json with the same "
            "options (--config, --set, --heads, --source-dialect), and pass --config config.json when you read it"
        )

    def plain_names(self, tensors: Collection[str]) -> dict[str, str]:
        """Return the names that the table knows -> the names in the file."""
        return {name: name for name in tensors}

    def ignored(self, tensors: Collection[str]) -> dict[str, str]:
        """Return the tensors that are not part of a model, and why they can be left out."""
        return {}

    def shown(self, names: Collection[str]) -> dict[str, Any]:
        """Return the fields that the names of the tensors show."""
        return {}

    def configure(self, tensors: Mapping[str, Array], override: ConfigOverride) -> ModelConfig:
        """Return the configuration of the tensors."""
        if override is not None and not isinstance(override, Mapping):
            return configured({}, override)
        given, sizes = dict(override or {}), self.sizes(tensors)
        if not given.keys() <= _defaults().keys():
            configured(self.family, given)  # refuses the unknown field
        if missing := self.unanswered(given, tensors):
            raise unanswered(missing)
        for name in ("source_max_length", "target_max_length"):
            if name in sizes and type(offset := given.get("position_offset", 0)) is int:
                sizes[name] -= offset  # unused rows of the table
        heads = given.get("heads", self.family.get("heads"))
        sizes = sizes if heads is None else of_one_head(sizes, heads)
        return configured({**self.family, **self.shown(tensors), **sizes}, given)

    def sizes(self, tensors: Mapping[str, Array]) -> dict[str, int]:
        """Return the sizes that the tensors show. ``key_size`` and ``value_size`` are those of all heads together."""
        return from_shapes(self.table, {name: tensor.shape for name, tensor in tensors.items()})

    def unanswered(self, given: Mapping[str, Any], names: Collection[str]) -> list[str]:
        """Return the fields that no tensor shows and that are not ``given``. ``names`` are the tensor names."""
        return [name for name in self.asked if name not in given]

    def buffers(self, config: ModelConfig) -> dict[str, tuple[int, ...]]:
        """Return the shapes of tensors that are not parameters, which a file may have."""
        return {}

    def left_out(
        self, config: ModelConfig, tensors: Mapping[str, Array], names_in_file: Mapping[str, str]
    ) -> dict[str, str]:
        """Return the tensors of the file that are not parameters, and why they can be left out."""
        return {}

    def to_write(self, checkpoint: Checkpoint) -> Mapping[str, Array]:
        """Return everything that a file of this dialect holds."""
        return self.table.from_canonical(checkpoint)

    def check_expressible(self, config: ModelConfig) -> None:
        """Refuse a model of which a module of this dialect would compute something else."""
        base = {**_defaults(), **self.family}
        losses = [
            f"{name} {value!r} (only {base[name]!r})"
            for name, value in config.to_dict().items()
            if name not in self.free and value != base[name]
        ]
        if self.heads_divide_hidden_size and not losses:
            losses = [
                f"{name} {getattr(config, name)} times heads {config.heads} (only hidden_size {config.hidden_size})"
                for name in ("key_size", "value_size")
                if getattr(config, name) * config.heads != config.hidden_size
            ]
        if losses:
            raise inexpressible(self.table.dialect, losses)


def _defaults() -> dict[str, Any]:
    """Return the defaults of a configuration, as JSON has them."""
    return {entry.name: [] if entry.default == () else entry.default for entry in dataclasses.fields(ModelConfig)}
