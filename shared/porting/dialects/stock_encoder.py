"""Dialects ``torch-transformer`` and ``paddle-transformer``: the stock encoders of PyTorch and PaddlePaddle.

They are the state dicts of ``torch.nn.TransformerEncoder`` and ``paddle.nn.TransformerEncoder``. Both libraries have
the same layers, of the original Transformer (Vaswani et al. 2017), and the norm comes first or last. They differ in two
things: PyTorch packs query, key and value into one tensor and stores linear weights as (out, in). A missing bias shows
in the names. ``bias=False`` in PyTorch leaves out those of linear layers and norms, ``bias_attr=False`` in PaddlePaddle
only those of linear layers.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from triglot.shared.arrays import Array
from triglot.shared.errors import PortingError
from triglot.shared.model.config import ModelConfig
from triglot.shared.model.recipes import ConfigOverride

from .dialect import inexpressible
from .state_dict import FREE_FIELDS, StateDict
from .table import Table, attention

_PROCESSES = {True: ("n", "da"), False: ("", "dan")}  # by whether the norm comes first: ``norm_first`` in PyTorch
_FREE = {
    *("pre_process", "post_process", "final_process", "activation", "norm_eps"),
    *("projection_bias", "output_bias", "feed_forward_bias", "norm_bias", "final_norm_bias"),
}
_LONGEST = 512  # a configuration needs a limit, and the modules have none


def _layer(projections: tuple[str, str, str, str]) -> dict[str, str]:
    """Return the modules of one layer: their canonical paths in it -> those in the library."""
    return {
        **attention("attention", "self_attn.", projections),
        "feed_forward.inner": "linear1",
        "feed_forward.output": "linear2",
        # A model has either the norms before the blocks or those after them.
        "pre_attention.norm": "norm1",
        "post_attention.norm": "norm1",
        "pre_feed_forward.norm": "norm2",
        "post_feed_forward.norm": "norm2",
    }


# PyTorch packs query, key and value.
TORCH_LAYER = _layer(("in_proj_{leaf}", "in_proj_{leaf}", "in_proj_{leaf}", "out_proj"))
PADDLE_LAYER = _layer(("q_proj", "k_proj", "v_proj", "out_proj"))


def _table(dialect: str, layer: Mapping[str, str], *, transposed: bool) -> Table:
    modules = {f"encoder.layers.N.{path}": f"layers.{{index}}.{name}" for path, name in layer.items()}
    return Table(dialect, {**modules, "encoder.final.norm": "norm"}, transposed=transposed)


class Biases(NamedTuple):
    """Whether the linear layers and the norms of each layer have biases."""

    projection: bool
    output: bool
    feed_forward: bool
    norm: bool


@dataclass(frozen=True)
class StockEncoder(StateDict):
    """The state dict of a stock encoder. ``norm_first`` is asked for in place of the processes.

    ``allows`` says which biases the library can leave out, and ``allowed`` says it in words.
    """

    allows: Callable[[Biases], bool] = lambda biases: True
    allowed: str = ""

    def configure(self, tensors: Mapping[str, Array], override: ConfigOverride) -> ModelConfig:
        """See ``StateDict.configure``."""
        if isinstance(override, Mapping) and "norm_first" in override:
            norm_first = override["norm_first"]
            if not isinstance(norm_first, bool):
                raise PortingError(f"norm_first is {norm_first!r}; expected true or false")
            pre, post = _PROCESSES[norm_first]
            override = {"pre_process": pre, "post_process": post} | {
                name: value for name, value in override.items() if name != "norm_first"
            }
        return super().configure(tensors, override)

    def unanswered(self, given: Mapping[str, Any], sizes: Mapping[str, int]) -> list[str]:
        """See ``StateDict.unanswered``."""
        answered = {"norm_first": None} if {"pre_process", "post_process"} <= given.keys() else {}
        return super().unanswered({**answered, **given}, sizes)

    def shown(self, names: Collection[str]) -> dict[str, Any]:
        """See ``StateDict.shown``."""
        layer = "encoder.layers.0"
        ends_with_norm = self._has("encoder.final.norm.scale", names)
        return {
            "final_process": "n" if ends_with_norm else "",
            "projection_bias": self._has(f"{layer}.attention.query.bias", names),
            "output_bias": self._has(f"{layer}.attention.output.bias", names),
            "feed_forward_bias": self._has(f"{layer}.feed_forward.inner.bias", names),
            "norm_bias": self._has(f"{layer}.pre_attention.norm.bias", names),
            "final_norm_bias": self._has("encoder.final.norm.bias", names) or not ends_with_norm,
        }

    def _has(self, canonical: str, names: Collection[str]) -> bool:
        return self.table.name(canonical, "scale" if canonical.endswith("scale") else "bias") in names

    def check_expressible(self, config: ModelConfig) -> None:
        """See ``StateDict.check_expressible``."""
        super().check_expressible(config)
        if (config.pre_process, config.post_process) not in _PROCESSES.values():
            given = f"pre_process {config.pre_process!r} with post_process {config.post_process!r}"
            raise inexpressible(self.table.dialect, [f"{given} (only 'n' with 'da', or '' with 'dan')"])
        if config.final_process not in ("", "n"):
            raise inexpressible(self.table.dialect, [f"final_process {config.final_process!r} (only '' or 'n')"])
        biases = Biases(config.projection_bias, config.output_bias, config.feed_forward_bias, config.norm_bias)
        if not self.allows(biases):
            given = ", ".join(f"{name}_bias {value}" for name, value in biases._asdict().items())
            raise inexpressible(self.table.dialect, [f"{given} ({self.allowed})"])


def _torch_allows(biases: Biases) -> bool:
    # The fast path for inference, which only a layer without a projection bias never takes, needs all biases. Without
    # the others, the norms may be replaced by those with a bias.
    return all(biases) or not any(biases[:3])


def _paddle_allows(biases: Biases) -> bool:
    return biases.projection == biases.output  # ``bias_attr`` may be a list, for attention and feed-forward


def _encoder(library: str, table: Table, allows: Callable[[Biases], bool], allowed: str) -> StockEncoder:
    return StockEncoder(
        table,
        f"the state dict of {library}.nn.TransformerEncoder",
        {
            "kind": "encoder",
            "source_vocabulary": 0,
            "source_max_length": _LONGEST,
            "positions": "none",
            "masking": "exclude",
        },
        f"expected the state dict of {library}.nn.TransformerEncoder and nothing else",
        ("heads", "norm_first", "activation", "norm_eps"),
        FREE_FIELDS | _FREE,
        allows=allows,
        allowed=allowed,
    )


TORCH = _encoder(
    "torch",
    _table("torch-transformer", TORCH_LAYER, transposed=True),
    _torch_allows,
    "only all True, or the first three False",
)
PADDLE = _encoder(
    "paddle", _table("paddle-transformer", PADDLE_LAYER, transposed=False), _paddle_allows, "only the first two alike"
)
