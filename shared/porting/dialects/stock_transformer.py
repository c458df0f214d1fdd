"""Dialects ``torch-transformer`` and ``paddle-transformer``: the stock Transformers of PyTorch and PaddlePaddle.

They are the state dicts of ``TransformerEncoder`` and ``Transformer``, in ``torch.nn`` and in ``paddle.nn``. Both
libraries have the same layers, those of the original Transformer (Vaswani et al. 2017), and the norm comes first or
last. They differ in two things: PyTorch packs query, key and value into one tensor and stores linear weights as (out,
in). The names show which biases are missing. ``bias=False`` in PyTorch leaves out those of linear layers and norms;
``bias_attr=False`` in PaddlePaddle leaves out only those of linear layers.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from triglot.shared.arrays import Array
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.errors import PortingError
from triglot.shared.model.config import ModelConfig
from triglot.shared.model.recipes import ConfigOverride
from triglot.shared.porting.source import Source

from .dialect import Dialect, Layout, inexpressible
from .state_dict import FREE_FIELDS, StateDict
from .table import Table, attention

_PROCESSES = {True: ("n", "da"), False: ("", "dan")}  # by whether the norm comes first: ``norm_first`` in PyTorch
_FREE = {
    *("pre_process", "post_process", "final_process", "activation", "norm_eps"),
    *("projection_bias", "output_bias", "feed_forward_bias", "norm_bias", "final_norm_bias"),
}
_PADDLE_EPS = 1e-5  # paddle.nn.Transformer has no option for it
_LONGEST = 512  # a configuration needs a limit, and the modules have none

# PyTorch packs query, key and value.
_TORCH_PROJECTIONS = ("in_proj_{leaf}", "in_proj_{leaf}", "in_proj_{leaf}", "out_proj")
_PADDLE_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "out_proj")


def _layer(projections: tuple[str, str, str, str], attentions: Mapping[str, str]) -> dict[str, str]:
    """Return the modules of one layer: their canonical paths in it -> those in the library.

    ``attentions``: the canonical names of its attention modules -> those in the library.
    """
    modules = {"feed_forward.inner": "linear1", "feed_forward.output": "linear2"}
    for canonical, name in attentions.items():
        modules |= attention(canonical, f"{name}.", projections)
    for number, block in enumerate((*attentions, "feed_forward"), start=1):
        # A model has either the norms before the blocks or those after them.
        modules |= {f"pre_{block}.norm": f"norm{number}", f"post_{block}.norm": f"norm{number}"}
    return modules


TORCH_LAYER = _layer(_TORCH_PROJECTIONS, {"attention": "self_attn"})
PADDLE_LAYER = _layer(_PADDLE_PROJECTIONS, {"attention": "self_attn"})
_TORCH_DECODER_LAYER = _layer(_TORCH_PROJECTIONS, {"self_attention": "self_attn", "cross_attention": "multihead_attn"})
_PADDLE_DECODER_LAYER = _layer(_PADDLE_PROJECTIONS, {"self_attention": "self_attn", "cross_attention": "cross_attn"})


def _stack(stack: str, layer: Mapping[str, str], path: str) -> dict[str, str]:
    """Return the modules of a stack, "encoder" or "decoder", whose path in the library is ``path``."""
    layers = {f"{stack}.layers.N.{canonical}": f"{path}layers.{{index}}.{name}" for canonical, name in layer.items()}
    return {**layers, f"{stack}.final.norm": f"{path}norm"}


class Biases(NamedTuple):
    """Whether the linear layers and the norms of each layer have biases."""

    projection: bool
    output: bool
    feed_forward: bool
    norm: bool


@dataclass(frozen=True)
class StockModule(StateDict):
    """The state dict of one stock module. ``norm_first`` is asked for in place of the processes.

    ``allows`` says which biases the library can leave out, and ``allowed`` says it in words. ``fixed_eps`` is the
    epsilon of the norms if the module has no option for it.
    """

    allows: Callable[[Biases], bool] = lambda biases: True
    allowed: str = ""
    fixed_eps: float | None = None

    def configure(self, tensors: Mapping[str, Array], override: ConfigOverride) -> ModelConfig:
        """See ``StateDict.configure``."""
        if isinstance(override, Mapping) and "norm_first" in override:
            norm_first = override["norm_first"]
            if not isinstance(norm_first, bool):
                raise PortingError(f"norm_first is {norm_first!r}; expected true or false; correct the configuration")
            pre, post = _PROCESSES[norm_first]
            override = {"pre_process": pre, "post_process": post} | {
                name: value for name, value in override.items() if name != "norm_first"
            }
        return super().configure(tensors, override)

    def read(self, source: Source, override: ConfigOverride = None) -> Checkpoint:
        """See ``StateDict.read``. Norms other than LayerNorm may show biases that the module cannot have."""
        checkpoint = super().read(source, override)
        try:
            self.check_expressible(checkpoint.config)
        except PortingError as error:
            raise PortingError(f"{source.path} is not {self.expected}: {error}") from error
        return checkpoint

    def unanswered(self, given: Mapping[str, Any], names: Collection[str]) -> list[str]:
        """See ``StateDict.unanswered``. The user builds the final norm; with only a weight, it may be an RMSNorm."""
        answered = {"norm_first": None} if {"pre_process", "post_process"} <= given.keys() else {}
        shown = self.shown(names)
        if shown["final_process"] and not shown["final_norm_bias"] and "norm" not in given:
            return [*super().unanswered({**answered, **given}, names), "norm"]
        return super().unanswered({**answered, **given}, names)

    def shown(self, names: Collection[str]) -> dict[str, Any]:
        """See ``StateDict.shown``. The first layer of the encoder shows the biases that every layer must have."""
        layer = "encoder.layers.0"
        ends_with_norm = self.table.name("encoder.final.norm.scale", "scale") in names

        def has(bias: str) -> bool:
            return self.table.name(bias, "bias") in names

        return {
            "final_process": "n" if ends_with_norm else "",
            "projection_bias": has(f"{layer}.attention.query.bias"),
            "output_bias": has(f"{layer}.attention.output.bias"),
            "feed_forward_bias": has(f"{layer}.feed_forward.inner.bias"),
            "norm_bias": has(f"{layer}.pre_attention.norm.bias"),
            "final_norm_bias": has("encoder.final.norm.bias") or not ends_with_norm,
        }

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


@dataclass(frozen=True)
class StockTransformer:
    """The two modules of a library: its encoder, and its encoder-decoder."""

    encoder: StockModule
    pair: StockModule

    @property
    def dialect(self) -> Dialect:
        """The dialect of both state dicts."""
        expected = self.encoder.dialect.expected.replace("Encoder", "Encoder or Transformer")
        return replace(
            self.encoder.dialect,
            expected=expected,
            sign=self.sign,
            read=self.read,
            write=self.write,
            layout=self.layout,
            remark=self.remark,
        )

    def sign(self, source: Source) -> str:
        """Return the name of the first tensor of self-attention or of cross-attention, if the source has it."""
        return self.pair.sign(source) or self.encoder.sign(source)

    def read(self, source: Source, override: ConfigOverride = None) -> Checkpoint:
        """Read the state dict of either module; see ``StateDict.read``."""
        module = self.pair if self.pair.sign(source) else self.encoder
        return module.read(source, override)

    def write(self, checkpoint: Checkpoint, target: Path) -> None:
        """Write the state dict of the module that has the layers of the model; see ``StateDict.write``."""
        self._module(checkpoint).write(checkpoint, target)

    def layout(self, checkpoint: Checkpoint, target: Path) -> Layout:
        """See ``Dialect.layout``."""
        return self._module(checkpoint).layout(checkpoint, target)

    def remark(self, checkpoint: Checkpoint) -> str:
        """See ``Dialect.remark``."""
        module = self._module(checkpoint)
        reading, fixed = module.remark(checkpoint), module.fixed_eps
        if fixed is None or checkpoint.config.norm_eps == fixed:
            return reading
        return (
            f"{reading}; the module always uses an epsilon of {fixed}, so its results differ; pass it your own "
            f"custom_encoder and custom_decoder, built with layer_norm_eps={checkpoint.config.norm_eps}"
        )

    def _module(self, checkpoint: Checkpoint) -> StockModule:
        return self.pair if checkpoint.config.kind == "encoder_decoder" else self.encoder


def _torch_allows(biases: Biases) -> bool:
    # PyTorch's fast path for inference needs all biases, and only a layer without a projection bias never takes it.
    # Without the other biases, the norms may be replaced by norms with a bias.
    return all(biases) or not any(biases[:3])


def _paddle_allows(biases: Biases) -> bool:
    return biases.projection == biases.output  # ``bias_attr`` may be a list, for attention and feed-forward


def _transformer(
    library: str,
    layer: Mapping[str, str],
    decoder_layer: Mapping[str, str],
    allows: Callable[[Biases], bool],
    allowed: str,
    *,
    transposed: bool,
) -> StockTransformer:
    def module(name: str, kind: str, modules: Mapping[str, str], advice: str, **fields: Any) -> StockModule:
        vectors = {"source_vocabulary": 0, "source_max_length": _LONGEST, "positions": "none", "masking": "exclude"}
        return StockModule(
            Table(f"{library}-transformer", modules, transposed=transposed),
            f"the state dict of {library}.nn.{name}",
            {"kind": kind, **vectors, **fields},
            f"expected the state dict of {library}.nn.{name}{advice} and nothing else",
            ("heads", "norm_first", "activation", "norm_eps"),
            FREE_FIELDS | _FREE,
            allows=allows,
            allowed=allowed,
            fixed_eps=_PADDLE_EPS if (library, name) == ("paddle", "Transformer") else None,
        )

    encoder = module("TransformerEncoder", "encoder", _stack("encoder", layer, ""), "")
    both = {**_stack("encoder", layer, "encoder."), **_stack("decoder", decoder_layer, "decoder.")}
    alike = ", whose stacks have the same biases and both end with a norm or both do not,"
    pair = module("Transformer", "encoder_decoder", both, alike, target_max_length=_LONGEST)
    return StockTransformer(encoder, replace(pair, signs=("decoder.layers.0.cross_attention.query.weight",)))


TORCH = _transformer(
    "torch",
    TORCH_LAYER,
    _TORCH_DECODER_LAYER,
    _torch_allows,
    "only all True, or the first three False",
    transposed=True,
)
PADDLE = _transformer(
    "paddle", PADDLE_LAYER, _PADDLE_DECODER_LAYER, _paddle_allows, "only the first two alike", transposed=False
)
