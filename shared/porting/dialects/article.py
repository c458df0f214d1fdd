"""What the dialects of the articles share: the bare state dict of an article's own code, in any container.

Its tensors show the sizes. The user has to pass what the article's code leaves open. All other fields are the same in
every model of that code, and come from the recipe of the article.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from triglot.shared.arrays import FLOATS, Array
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.checkpoint.checksums import DeferredTensors
from triglot.shared.errors import PortingError
from triglot.shared.model.config import ModelConfig
from triglot.shared.model.positions import TABLES
from triglot.shared.model.recipes import recipe

from .dialect import Dialect
from .state_dict import FREE_FIELDS, StateDict
from .table import Table

_ROUNDING = 2.0**-24  # of a number below 1 in float32


@dataclass(frozen=True)
class Article(StateDict):
    """The state dict of one article's code.

    ``position_tables`` maps the names of position tables to the configuration field that gives their length. ``scope``:
    a name that may precede the names that begin with an underscore.
    """

    position_tables: Mapping[str, str] = field(default_factory=dict[str, str])
    scope: str = ""

    def plain_names(self, tensors: Collection[str]) -> dict[str, str]:
        """See ``StateDict.plain_names``."""
        scoped = [name for name in tensors if self.scope and name.startswith(f"{self.scope}_")]
        bare = [name for name in tensors if self.scope and name.startswith("_")]
        if scoped and bare:
            raise PortingError(f"{scoped[0]} and {bare[0]} belong to two models; keep one of them")
        return {name.removeprefix(self.scope) if name in scoped else name: name for name in tensors}

    def sizes(self, tensors: Mapping[str, Array]) -> dict[str, int]:
        """See ``StateDict.sizes``. Position tables show the longest sequences."""
        sizes = super().sizes(tensors)
        for name, length in self.position_tables.items():
            if name in tensors and tensors[name].ndim == len(("batch", "position", "hidden")):
                sizes[length] = tensors[name].shape[1]
        if self.family["shared_embeddings"]:
            for size in ("vocabulary", "max_length"):
                if f"source_{size}" in sizes:
                    sizes[f"target_{size}"] = sizes[f"source_{size}"]
        return sizes

    def buffers(self, config: ModelConfig) -> dict[str, tuple[int, ...]]:
        """See ``StateDict.buffers``."""
        if config.positions not in TABLES:
            return {}
        lengths = {name: getattr(config, field) for name, field in self.position_tables.items()}
        return {name: (1, length, config.hidden_size) for name, length in lengths.items()}

    def left_out(
        self, config: ModelConfig, tensors: Mapping[str, Array], names_in_file: Mapping[str, str]
    ) -> dict[str, str]:
        """See ``StateDict.left_out``."""
        return {
            names_in_file[name]: _compare_positions(config, names_in_file[name], tensors[name])
            for name in self.buffers(config)
            if name in tensors
        }

    def to_write(self, checkpoint: Checkpoint) -> Mapping[str, Array]:
        """See ``StateDict.to_write``. It has the buffers, so that the article's code loads it strictly."""
        config = checkpoint.config
        # The float64 table rounded once, the best that float32 code could hold.
        buffers = {
            name: TABLES[config.positions](shape[1], config.hidden_size)[None].astype(np.float32)
            for name, shape in self.buffers(config).items()
        }
        native = self.table.from_canonical(checkpoint)
        return DeferredTensors(
            {**native.unread, **buffers}, lambda name: buffers[name] if name in buffers else native[name]
        )


def article(
    number: str,
    recipe_name: str,
    table: Table,
    position_tables: Mapping[str, str] | None = None,
    *,
    asked: tuple[str, ...] = ("heads",),
    scope: str = "",
    free: frozenset[str] = FREE_FIELDS,
    heads_divide_hidden_size: bool = True,
) -> Dialect:
    """Return the dialect of the article ``number``, whose configuration is a recipe."""
    return Article(
        table,
        "the state dict of the article's own code",
        recipe(recipe_name).to_dict(),
        f"expected the state dict of article {number}, and the recipe {recipe_name} where its tensors do not show the "
        "configuration; pass what differs in this model (config=, or --config and --set on the command line)",
        asked=asked,
        free=free,
        heads_divide_hidden_size=heads_divide_hidden_size,
        position_tables=position_tables or {},
        scope=scope,
    ).dialect


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
