"""The encoder for deployment on a CPU: padding costs little or nothing.

It is the module of ``transformer.py`` with another attention. Everything else treats every token alike, so it runs as
it is on packed tokens, (N, D), in place of (B, S, D). ``shared/inputs/packing.py`` says which tokens are where. A batch
with little or no padding is not packed. The programs run in Paddle's inference engine, which lays out the weights for
oneDNN's kernels, and fuses activations and masks.

Shapes: B batch, S length, N real tokens in the batch, D hidden size, V vocabulary; G rows of at most L tokens in a
group; H heads; P tokens in all padded groups, including padding.
"""

import copy
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
import paddle
from paddle import Tensor, nn
from paddle.nn import functional

from triglot.shared.arrays import Bools
from triglot.shared.inputs.packing import Group, pack
from triglot.shared.model.config import ModelConfig
from triglot.shared.model.probe import Probe

from .attention import MultiHeadAttention
from .execution import in_mode
from .heads import MaskedLM
from .masks import exact
from .transformer import Transformer

NAMES = ("source", "valid", "segment_ids", "task_ids")  # the inputs of an encoder

GROUPS = 3  # The number of groups of rows is fixed, because the programs do not loop over groups.

# A batch whose share of padding is below WIDTH / D, and below MOST_PADDING, is not packed. For each token, packing
# moves D numbers several times; for each token of padding, it saves products with D * D weights. Measured for hidden
# sizes 384 and 768 on two cores of an AMD EPYC.
WIDTH = 64
MOST_PADDING = 0.2

AnyLayer = TypeVar("AnyLayer", bound=nn.Layer)


class Packed:
    """A transformer on packed tokens, or on padded ones if a batch has little padding.

    Each program is built when it is first called, and has its own copy of the weights.
    """

    def __init__(self, transformer: Transformer) -> None:
        self.config = transformer.config
        self.packed = programs(with_attention(transformer, PackedAttention))
        self.padded = programs(with_attention(transformer, PaddedAttention))

    def encode(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return the output of the encoder, (B, S, D), zero at padding tokens. ``inputs``: see ``execution.py``."""
        return self.compute(encode, inputs)

    def run(self, inputs: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the output of the encoder, and the outputs of the heads by name."""
        return self.compute(run, inputs)

    def compute(self, program: Callable[..., Any], inputs: Mapping[str, Tensor]) -> Any:
        """Return what ``program`` returns for a batch, with or without packing."""
        valid = inputs["valid"].numpy()
        if has_little_padding(self.config, valid):
            return self.padded[program](inputs)
        return self.packed[program]({**inputs, **packing(self.config, valid)})


def programs(transformer: Any) -> dict[Callable[..., Any], Callable[..., Any]]:
    """Return ``encode`` and ``run`` in the inference engine. ``transformer``: see ``with_attention``."""
    if "masked_lm" in transformer.config.heads_on_top:
        heads = swapped(transformer.heads, masked_lm=PackedMaskedLM(transformer.heads.masked_lm))
        transformer = swapped(transformer, heads=heads)
    return {program: in_mode("compiled", program, transformer) for program in (encode, run)}


def has_little_padding(config: ModelConfig, valid: Bools) -> bool:
    """Return whether a batch has too little padding for packing to be faster. valid: bool (B, S)."""
    return 1 - valid.mean() < min(WIDTH / config.hidden_size, MOST_PADDING)


def packing(config: ModelConfig, valid: Bools) -> dict[str, Tensor]:
    """Return the packing of a batch as inputs of a program, by name. valid: bool (B, S), True for real tokens.

    "tokens" and "positions", (N,): see ``packing.Packing``. For each group k, "group_k", (G, L, 1): the index of the
    packed token at each place, and "mask_k", (G, 1, 1, L), to be added to scores: minus infinity at padding. "places",
    (N,): the index of each packed token among the P tokens of the padded groups.
    """
    packed = pack(valid, skip_padding=config.positions_skip_padding)
    arrays = {"tokens": packed.tokens, "positions": packed.positions}
    groups = packed.groups(most_rows=len(valid), most_groups=GROUPS)
    # If there are fewer, the missing ones are filled with the first token, and nothing reads their results.
    groups += (Group(0, 1, 1, 1, None, None),) * (GROUPS - len(groups))
    allowed = []
    for number, group in enumerate(groups):
        full = np.ones((group.rows, group.length), np.bool_)
        allowed.append(full if group.valid is None else group.valid)
        indices = group.start + (np.arange(full.size) if group.places is None else group.places)
        arrays[f"group_{number}"] = indices.reshape([*full.shape, 1])
        arrays[f"mask_{number}"] = np.where(allowed[-1], 0.0, -np.inf).astype(np.float32)[:, None, None, :]
    arrays["places"] = np.flatnonzero(np.concatenate([mask.ravel() for mask in allowed]))[: len(packed.tokens)]
    if not config.source_vocabulary or config.positions == "none":
        del arrays["positions"]  # the engine refuses an input that nothing reads
    return {name: paddle.to_tensor(array) for name, array in arrays.items()}


def encode(transformer: Transformer, inputs: Mapping[str, Tensor]) -> Tensor:
    """Return the output of the encoder, (B, S, D), zero at padding tokens.

    ``inputs``: those of ``packing`` too, if the transformer takes packed tokens.
    """
    if "tokens" not in inputs:
        return encode_padded(transformer, inputs)
    tokens, x = encode_packed(transformer, inputs)
    return unpacked(x, tokens, inputs["valid"])


def encode_padded(transformer: Any, inputs: Mapping[str, Tensor]) -> Tensor:
    """Return the output of the encoder, (B, S, D), zero at padding tokens."""
    config, valid = transformer.config, inputs["valid"]
    padding = ~valid[:, :, None]
    if config.source_vocabulary:
        x = transformer.embeddings(inputs["source"], valid, inputs.get("segment_ids"), inputs.get("task_ids"))
    else:
        x = inputs["source"].masked_fill(padding, 0.0)  # huge numbers would make the scores infinite
    mask = paddle.log(valid[:, None, None, :].astype(x.dtype))  # 0 for real tokens, minus infinity at padding
    return transformer.encoder(x, {"mask": mask}).masked_fill(padding, 0.0)


def encode_packed(transformer: Any, inputs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return the indices of the N real tokens, and the output of the encoder for them, (N, D).

    ``inputs``: also those of ``packing``.
    """
    tokens = inputs["tokens"]
    packed = {name: paddle.gather(inputs[name].flatten(0, 1), tokens) for name in NAMES if name in inputs}
    x = packed["source"]
    if transformer.config.source_vocabulary:  # each token is a row of its own, which begins at its position
        ids = [packed[name][:, None] if name in packed else None for name in ("valid", "segment_ids", "task_ids")]
        positions = inputs["positions"][:, None] if "positions" in inputs else 0
        x = transformer.embeddings(x[:, None], *ids, positions)[:, 0]
    return tokens, transformer.encoder(x, inputs)


def run(transformer: Transformer, inputs: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the output of the encoder, and the outputs of the heads by name. ``inputs``: as in ``encode``."""
    x = encode(transformer, inputs)
    token_table = transformer.embeddings.token.weight if transformer.config.tied_embeddings else None
    return x, transformer.heads(x, inputs["valid"], token_table)


class PackedAttention(nn.Layer):
    """Self-attention in ``GROUPS`` groups of rows."""

    def __init__(self, attention: MultiHeadAttention) -> None:
        super().__init__()
        self.config = attention.config
        # They stay three products: the engine is slower with a single one, whose result has to be split.
        self.query, self.key, self.value = attention.query, attention.key, attention.value
        self.output = attention.output

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, groups: Mapping[str, Tensor], probe: Probe | None = None
    ) -> tuple[Tensor, None]:
        """Return the output, (N, D), and no weights. query, key and value are the same packed tokens, (N, D).

        ``groups``: see ``packing``.
        """
        output = self.output(self.contexts(self.query(query), self.key(key), self.value(value), groups))
        return functional.relu(output) if self.config.attention_output_activation == "relu" else output, None

    def contexts(self, queries: Tensor, keys: Tensor, values: Tensor, groups: Mapping[str, Tensor]) -> Tensor:
        """Return the contexts of all tokens, (N, H * size). queries, keys, values: (N, H * size)."""
        contexts = []
        for number in range(GROUPS):
            rows = groups[f"group_{number}"]
            own = (paddle.gather_nd(x, rows) for x in (queries, keys, values))
            contexts.append(self.attend(*own, mask=groups[f"mask_{number}"]).flatten(0, 1))
        return paddle.gather(paddle.concat(contexts), groups["places"])

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """Return the contexts of rows, (G, L, H * size). queries, keys, values: (G, L, H * size).

        mask: (G, 1, 1, L), added to the scores.
        """
        config = self.config
        queries, keys = self.split_heads(queries, config.key_size), self.split_heads(keys, config.key_size)
        scores = paddle.matmul(queries * exact(config.key_size**-0.5, queries.dtype), keys, transpose_y=True)
        weights = functional.softmax(scores + mask, axis=-1)
        context = paddle.matmul(weights, self.split_heads(values, config.value_size)).transpose([0, 2, 1, 3])
        return context.reshape([0, 0, config.heads * config.value_size])

    def split_heads(self, x: Tensor, size: int) -> Tensor:
        """Split the last axis into heads: (G, L, H * size) to (G, H, L, size)."""
        return x.reshape([0, 0, self.config.heads, size]).transpose([0, 2, 1, 3])


class PaddedAttention(PackedAttention):
    """Self-attention in the rows of the batch. It takes (B, S, D) in place of (N, D), and one "mask", (B, 1, 1, S)."""

    def contexts(self, queries: Tensor, keys: Tensor, values: Tensor, groups: Mapping[str, Tensor]) -> Tensor:
        """Return the contexts of all tokens, (B, S, H * size). queries, keys, values: (B, S, H * size)."""
        return self.attend(queries, keys, values, groups["mask"])


class PackedMaskedLM(nn.Layer):
    """The scores over the vocabulary, computed for the real tokens only."""

    def __init__(self, head: MaskedLM) -> None:
        super().__init__()
        self.head = head

    def forward(self, x: Tensor, valid: Tensor, token_table: Tensor | None, probe: Probe | None = None) -> Tensor:
        """Return the scores, (B, S, V), zero at padding tokens. x: (B, S, D). valid: bool (B, S)."""
        head = self.head
        tokens = paddle.nonzero(valid.flatten())[:, 0]
        x = head.norm(head.activation(head.transform(paddle.gather(x.flatten(0, 1), tokens))))
        table = head.decoder.weight if token_table is None else token_table
        return unpacked(paddle.matmul(x, table, transpose_y=True) + head.bias, tokens, valid)


def with_attention(transformer: Transformer, kind: type[PackedAttention]) -> Any:
    """Return the same transformer with another self-attention. The weights are shared with the original."""
    layers = [swapped(layer, attention=kind(layer.attention)) for layer in transformer.encoder.layers]
    return swapped(transformer, encoder=swapped(transformer.encoder, layers=nn.LayerList(layers)))


def swapped(layer: AnyLayer, **layers: nn.Layer) -> AnyLayer:
    """Return the same layer with other children of these names. Everything else is shared with the original."""
    other = copy.copy(layer)
    other._sub_layers = OrderedDict({**layer._sub_layers, **layers})
    return other


def unpacked(x: Tensor, tokens: Tensor, valid: Tensor) -> Tensor:
    """Return packed tokens where they are in the batch, (B, S, ...), and zero elsewhere. x: (N, ...)."""
    rows, length = paddle.shape(valid)[0], paddle.shape(valid)[1]
    padded = paddle.zeros([rows * length, x.shape[1]], x.dtype)
    return paddle.scatter(padded, tokens, x).reshape([rows, length, x.shape[1]])
