"""What the dialects of the articles share: the bare state dict of an article's own code, in any container.

A state dict does not say heads, epsilon or masking, and its sizes show only in shapes. So all fields come from the
recipe of the article or from ``config``, and then every name and every shape must match.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from triglot.shared import files
from triglot.shared.arrays import Array
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.errors import PortingError, TriglotError
from triglot.shared.model import schema
from triglot.shared.model.config import ModelConfig
from triglot.shared.model.overrides import Given, configured
from triglot.shared.model.positions import TABLES
from triglot.shared.model.recipes import recipe
from triglot.shared.porting import containers

from . import naming, position_buffers, renaming
from .dialect import Dialect

# The fields that the code of every article takes as an argument or leaves to its data. Head sizes follow from others.
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
class Article:
    """The state dict of one article's code.

    ``number`` is the article's, ``recipe`` its configuration. ``names`` is the table of names (``naming.py``).
    ``buffers`` maps the names of position tables to the configuration field that gives their length. ``transposed``:
    linear weights are (out, in). ``scope``: a name that may precede the names that begin with an underscore. ``free``:
    the configuration fields that the code can follow; all others must be those of the recipe.
    ``heads_divide_hidden_size``: heads have no size of their own.
    """

    number: str
    recipe: str
    names: Mapping[str, str]
    buffers: Mapping[str, str]
    transposed: bool = True
    scope: str = ""
    free: frozenset[str] = FREE_FIELDS
    heads_divide_hidden_size: bool = True

    @property
    def dialect(self) -> Dialect:
        """The dialect of this article. It must be named, because other models use the same names.

        ERNIE has those of article 001, and ``torch.nn.MultiheadAttention`` has those of article 004.
        """
        return Dialect(
            f"article-{self.recipe}",
            f"the state dict of the article's own code, a file {containers.SUFFIXES}",
            self.recognises,
            self.read,
            self.write,
            self.check_target,
            must_be_named=True,
        )

    def recognises(self, source: Path) -> bool:
        """Return whether the name of ``source`` says that it can be a state dict."""
        return source.is_file() and source.suffix in containers.BY_SUFFIX

    def read(self, source: Path, config: Given = None) -> Checkpoint:
        """Read the state dict ``source`` as a checkpoint with the article's recipe, as ``config`` corrects it.

        Raises:
            PortingError: the file is damaged, or is not exactly the state dict of this configuration.
            ConfigError: ``config`` is wrong.
        """
        final = configured(recipe(self.recipe).to_dict(), config)
        state_dict = containers.BY_SUFFIX[source.suffix].read(source)
        try:
            renaming.check_layers(final, len(state_dict))
            names_in_file = self._without_scope(state_dict)
            tensors = {name: state_dict[name_in_file] for name, name_in_file in names_in_file.items()}
            table = self.native_names(final)
            self._check(final, table, tensors, names_in_file)
            left_out = self._check_buffers(final, tensors, names_in_file)
        except TriglotError as error:
            raise PortingError(f"cannot port {source}: {error}") from error
        return Checkpoint(
            final,
            renaming.to_canonical(final, table, tensors, transposed=self.transposed),
            {name: names_in_file[native] for name, native in table.items()},
            left_out=left_out,
        )

    def write(self, checkpoint: Checkpoint, target: Path) -> None:
        """Write the state dict with its buffers, so that the article's code loads it strictly.

        Raises:
            PortingError: the article's code would compute something else, the suffix of ``target`` is unknown, or its
                container cannot hold a tensor.
            OutputError: the target cannot be written.
        """
        self.check_target(target)
        config = checkpoint.config
        self._check_expressible(config)
        tensors = renaming.from_canonical(checkpoint, self.native_names(config), transposed=self.transposed)
        for name, length in self._buffer_lengths(config).items():
            tensors[name] = position_buffers.table(config, length)
        with files.writing(target) as file:
            containers.BY_SUFFIX[target.suffix].write(file, tensors)

    def check_target(self, target: Path) -> None:
        """Check, before any work is done, that a state dict can be written to ``target``.

        Raises:
            PortingError: its suffix is unknown.
            OutputError: ``files.check_target`` refuses it.
        """
        if target.suffix not in containers.BY_SUFFIX:
            raise PortingError(
                f"cannot write {target}: its suffix is {target.suffix!r}, expected {containers.SUFFIXES}; rename it"
            )
        files.check_target(target)

    def native_names(self, config: ModelConfig) -> dict[str, str]:
        """Return the table canonical name -> name in this dialect, for every parameter of ``config``.

        Raises:
            PortingError: the configuration has a parameter that the article does not have.
        """
        table: dict[str, str] = {}
        for name in schema.parameters(config):
            native = naming.native_name(self.names, name)
            if native is None:
                raise PortingError(
                    f"article {self.number} has no name for {name}; pass the configuration of this article's model"
                )
            table[name] = native
        return table

    def _without_scope(self, state_dict: Mapping[str, Array]) -> dict[str, str]:
        """Return the names without the scope -> the names in the file."""
        scoped = [name for name in state_dict if self.scope and name.startswith(f"{self.scope}_")]
        bare = [name for name in state_dict if self.scope and name.startswith("_")]
        if scoped and bare:
            raise PortingError(f"{scoped[0]} and {bare[0]} belong to two models; keep one of them")
        return {name.removeprefix(self.scope) if name in scoped else name: name for name in state_dict}

    def _buffer_lengths(self, config: ModelConfig) -> dict[str, int]:
        if config.positions not in TABLES:
            return {}
        return {name: getattr(config, field) for name, field in self.buffers.items()}

    def _check(
        self,
        config: ModelConfig,
        table: Mapping[str, str],
        tensors: Mapping[str, Array],
        names_in_file: Mapping[str, str],
    ) -> None:
        lengths = self._buffer_lengths(config)
        renaming.check_tensors(
            tensors,
            renaming.shapes(config, table, transposed=self.transposed),
            names_in_file,
            f"expected the state dict of article {self.number} at the sizes of the configuration, by default the "
            f"recipe {self.recipe}; pass the sizes of this model (config=, or --config and --set on the command line)",
            optional={name: (1, length, config.hidden_size) for name, length in lengths.items()},
        )

    def _check_buffers(
        self, config: ModelConfig, tensors: Mapping[str, Array], names_in_file: Mapping[str, str]
    ) -> dict[str, str]:
        """Compare the position tables in the file with the computed ones. Return why each is left out."""
        reasons: dict[str, str] = {}
        for name in self._buffer_lengths(config):
            if name not in tensors:
                continue
            difference, bound = position_buffers.difference(config, tensors[name])
            name_in_file = names_in_file[name]
            if difference > bound:
                raise PortingError(
                    f"{name_in_file} differs from the {config.positions} positions by up to {difference:.2g}, rounding "
                    f"explains {bound:.2g}; set positions in the configuration, or remove {name_in_file}"
                )
            reasons[name_in_file] = (
                f"Triglot computes {config.positions} positions; this table differs from them by at most "
                f"{difference:.2g}"
            )
        return reasons

    def _check_expressible(self, config: ModelConfig) -> None:
        base = recipe(self.recipe)
        losses = [
            f"{field.name} {getattr(config, field.name)!r} (only {getattr(base, field.name)!r})"
            for field in fields(config)
            if field.name not in self.free and getattr(config, field.name) != getattr(base, field.name)
        ]
        if self.heads_divide_hidden_size and not losses:
            losses = [
                f"{name} {getattr(config, name)} times heads {config.heads} (only hidden_size {config.hidden_size})"
                for name in ("key_size", "value_size")
                if getattr(config, name) * config.heads != config.hidden_size
            ]
        if losses:
            raise renaming.inexpressible(f"article-{self.recipe}", losses)
