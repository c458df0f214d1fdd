"""Dialects ``torch-transformer`` and ``paddle-transformer``: the stock encoders of PyTorch and PaddlePaddle.

They are the state dicts of ``torch.nn.TransformerEncoder`` and ``paddle.nn.TransformerEncoder``. Both libraries have
the same layers, of the original Transformer (Vaswani et al. 2017), and the norm comes first or last. They differ in two
things: PyTorch packs query, key and value into one tensor and stores linear weights as (out, in).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from triglot.shared.arrays import Array
from triglot.shared.errors import PortingError
from triglot.shared.model.config import ModelConfig
from triglot.shared.model.recipes import ConfigOverride

from .dialect import inexpressible
from .state_dict import FREE_FIELDS, StateDict
from .table import Table, attention

_PROCESSES = {True: ("n", "da"), False: ("", "dan")}  # by whether the norm comes first: ``norm_first`` in PyTorch
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


@dataclass(frozen=True)
class StockEncoder(StateDict):
    """The state dict of a stock encoder. ``norm_first`` is asked for in place of the processes."""

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
        return {"final_process": "n" if "norm.weight" in names else ""}

    def check_expressible(self, config: ModelConfig) -> None:
        """See ``StateDict.check_expressible``."""
        super().check_expressible(config)
        if (config.pre_process, config.post_process) not in _PROCESSES.values():
            given = f"pre_process {config.pre_process!r} with post_process {config.post_process!r}"
            raise inexpressible(self.table.dialect, [f"{given} (only 'n' with 'da', or '' with 'dan')"])
        if config.final_process not in ("", "n"):
            raise inexpressible(self.table.dialect, [f"final_process {config.final_process!r} (only '' or 'n')"])


def _encoder(library: str, table: Table) -> StockEncoder:
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
        FREE_FIELDS | {"pre_process", "post_process", "final_process", "activation", "norm_eps"},
    )


TORCH = _encoder("torch", _table("torch-transformer", TORCH_LAYER, transposed=True))
PADDLE = _encoder("paddle", _table("paddle-transformer", PADDLE_LAYER, transposed=False))
