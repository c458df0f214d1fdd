"""What the dialects of the articles share: the bare state dict of an article's own code, in any container.

A state dict does not say heads, epsilon or masking, and its sizes show only in shapes. So all fields come from the
recipe of the article or from ``config``, and then every name and every shape must match.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from triglot.shared import files
from triglot.shared.arrays import FLOATS, Array
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.errors import PortingError, TriglotError
from triglot.shared.model.config import ModelConfig
from triglot.shared.model.positions import TABLES
from triglot.shared.model.recipes import ConfigOverride, configured, recipe
from triglot.shared.porting import containers

from .dialect import Dialect, Table, inexpressible

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
_ROUNDING = 2.0**-24  # of a number below 1 in float32


@dataclass(frozen=True)
class Article:
    """The state dict of one article's code.

    ``number`` is the article's, ``recipe`` its configuration, ``table`` its names. ``buffers`` maps the names of
    position tables to the configuration field that gives their length. ``scope``: a name that may precede the names
    that begin with an underscore. ``free``: the configuration fields that the code can follow; all others must be those
    of the recipe. ``heads_divide_hidden_size``: heads have no size of their own.
    """

    number: str
    recipe: str
    table: Table
    buffers: Mapping[str, str]
    scope: str = ""
    free: frozenset[str] = FREE_FIELDS
    heads_divide_hidden_size: bool = True

    @property
    def dialect(self) -> Dialect:
        """The dialect of this article. It must be named, because other models use the same names.

        ERNIE has those of article 001, and ``torch.nn.MultiheadAttention`` has those of article 004.
        """
        return Dialect(
            self.table.dialect,
            f"the state dict of the article's own code, a file {containers.SUFFIXES}",
            lambda source: source.is_file() and source.suffix in containers.BY_SUFFIX,
            self.read,
            self.write,
            check_state_dict_target,
            must_be_named=True,
        )

    def read(self, source: Path, config: ConfigOverride = None) -> Checkpoint:
        """Read the state dict ``source`` as a checkpoint with the article's recipe, as ``config`` corrects it.

        Raises:
            PortingError: the file is damaged, or is not exactly the state dict of this configuration.
            ConfigError: ``config`` is wrong.
        """
        final = configured(recipe(self.recipe).to_dict(), config)
        state_dict = containers.BY_SUFFIX[source.suffix].read(source)
        try:
            names_in_file = self._without_scope(state_dict)
            tensors = {name: state_dict[name_in_file] for name, name_in_file in names_in_file.items()}
            lengths = self._buffer_lengths(final)
            self.table.check(
                final,
                tensors,
                names_in_file,
                f"expected the state dict of article {self.number} at the sizes of the configuration, by default the "
                f"recipe {self.recipe}; pass the sizes of this model (config=, or --config and --set on the command "
                "line)",
                optional={name: (1, length, final.hidden_size) for name, length in lengths.items()},
            )
            left_out = {
                names_in_file[name]: _compare_positions(final, names_in_file[name], tensors[name])
                for name in lengths
                if name in tensors
            }
        except TriglotError as error:
            raise PortingError(f"cannot port {source}: {error}") from error
        source_names = {name: names_in_file[native] for name, native in self.table.names(final).items()}
        return Checkpoint(final, self.table.to_canonical(final, tensors), source_names, left_out=left_out)

    def write(self, checkpoint: Checkpoint, target: Path) -> None:
        """Write the state dict with its buffers, so that the article's code loads it strictly.

        Raises:
            PortingError: the article's code would compute something else, the suffix of ``target`` is unknown, or its
                container cannot hold a tensor.
            OutputError: the target cannot be written.
        """
        check_state_dict_target(target)
        config = checkpoint.config
        self._check_expressible(config)
        tensors = self.table.from_canonical(checkpoint)
        for name, length in self._buffer_lengths(config).items():
            # The float64 table rounded once, the best that float32 code could hold.
            tensors[name] = TABLES[config.positions](length, config.hidden_size)[None].astype(np.float32)
        with files.writing(target) as file:
            containers.BY_SUFFIX[target.suffix].write(file, tensors)

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
            raise inexpressible(self.table.dialect, losses)


def check_state_dict_target(target: Path) -> None:
    """Check, before any work is done, that a state dict can be written to ``target``.

    Raises:
        PortingError: its suffix is unknown.
        OutputError: ``files.check_writable`` refuses it.
    """
    if target.suffix not in containers.BY_SUFFIX:
        raise PortingError(
            f"cannot write {target}: its suffix is {target.suffix!r}, expected {containers.SUFFIXES}; rename it"
        )
    files.check_writable(target)


def position_error(config: ModelConfig, buffer: Array) -> tuple[float, float]:
    """Return how far ``buffer`` (1, length, D) is from the position table, and how far rounding explains in that row.

    The row is the one with the largest difference, among the rows beyond their bound if there are any. NaN counts as
    infinitely far.

    The bound: float32 code multiplies a position p with a frequency w = exp(-x), x = i / D ln 10000. The product and
    the exponential are rounded once each, and x twice, which the exponential turns into a relative error of 2x
    roundings. That makes (2 + 2x) roundings of the angle p exp(-x), at most 2p for any x. Sine and cosine pass the
    error on and add up to 2 of their own. So row p is within (2p + 2) 2^-24: 6e-6 at length 50, 6.1e-5 at 512;
    measured errors are about half of that. A buffer that was rounded to 16 bits has half a unit of that format more.
    """
    exact = TABLES[config.positions](buffer.shape[1], config.hidden_size)
    errors = np.nan_to_num(np.abs(buffer[0].astype(np.float64) - exact).max(axis=1), nan=np.inf)
    bounds = (2 * np.arange(len(exact)) + 2) * _ROUNDING
    if buffer.dtype in (FLOATS["float16"], FLOATS["bfloat16"]):
        bounds += 2.0**-12 if buffer.dtype == FLOATS["float16"] else 2.0**-9
    beyond = errors > bounds
    row = int(np.argmax(np.where(beyond, errors, 0) if beyond.any() else errors))
    return float(errors[row]), float(bounds[row])


def _compare_positions(config: ModelConfig, name: str, buffer: Array) -> str:
    """Return why the position table ``name`` of a file is left out, or refuse it because Triglot computes another."""
    error, bound = position_error(config, buffer)
    if error > bound:
        raise PortingError(
            f"{name} differs from the {config.positions} positions by up to {error:.2g}, rounding explains "
            f"{bound:.2g}; set positions in the configuration, or remove {name}"
        )
    return f"Triglot computes {config.positions} positions; this table differs from them by at most {error:.2g}"
