"""The encoder for deployment on a CPU: padding costs little or nothing.

It is the module of ``transformer.py`` with another attention. Everything else treats every token alike, so it runs as
it is on packed tokens, (N, D), in place of (B, S, D). ``shared/inputs/packing.py`` says which tokens are where. A batch
with little padding is computed as it is. The programs run in Paddle's inference engine, which lays out the weights for
oneDNN's kernels, and fuses activations and masks.

Shapes: B batch, S length, N real tokens in the batch, D hidden size, V vocabulary; G rows of at most L tokens in a
group; H heads; n groups, which have P tokens when they are padded.
"""

import copy
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

import numpy as np
import paddle
from paddle import Tensor, nn
from paddle.nn import functional

from triglot.shared.arrays import Bools
from triglot.shared.inputs.packing import pack
from triglot.shared.model.config import ModelConfig
from triglot.shared.model.probe import Probe

from .attention import MultiHeadAttention
from .execution import in_mode
from .heads import MaskedLM
from .masks import exact
from .transformer import Transformer

NAMES = ("source", "valid", "segment_ids", "task_ids")  # the inputs of an encoder

# From this share of real tokens on, packing takes longer than it saves. Measured on two cores of an AMD EPYC.
FULL_ENOUGH = 0.8

AnyLayer = TypeVar("AnyLayer", bound=nn.Layer)


class Packed:
    """A transformer on packed tokens, or on padded ones if a batch has little padding.

    Each program is built at its first call, and has its own copy of the weights.
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
        if valid.mean() < FULL_ENOUGH:
            return self.packed[program]({**inputs, **packing(self.config, valid)})
        return self.padded[program](inputs)


def programs(transformer: Any) -> dict[Callable[..., Any], Callable[..., Any]]:
    """Return ``encode`` and ``run`` in the inference engine. ``transformer``: see ``with_attention``."""
    if "masked_lm" in transformer.config.heads_on_top:
        heads = swapped(transformer.heads, masked_lm=PackedMaskedLM(transformer.heads.masked_lm))
        transformer = swapped(transformer, heads=heads)
    return {program: in_mode("compiled", program, transformer) for program in (encode, run)}


def packing(config: ModelConfig, valid: Bools) -> dict[str, Tensor]:
    """Return the packing of a batch as inputs of a program, by name. valid: bool (B, S), True for real tokens.

    "tokens" and "positions", (N,): see ``packing.Packing``. "rows", (n,): the number of rows of each group.
    "starts" and "padded_starts", (n + 1,): where each group begins among the N tokens, and among the P tokens of
    all padded groups. "places", (P, 1): the index of the packed token at each of them. "allowed", bool (P,): True
    for real tokens. "real", (N, 2): the row and the column of each real token in its group.
    """
    packed = pack(valid, skip_padding=config.positions_skip_padding)
    allowed, places = [], []
    for group in packed.groups:
        full = np.ones((group.rows, group.length), np.bool_)
        allowed.append(full if group.valid is None else group.valid)
        places.append(group.start + (np.arange(full.size) if group.places is None else group.places))
    arrays = {
        "tokens": packed.tokens,
        "positions": packed.positions,
        "rows": np.array([group.rows for group in packed.groups]),
        "starts": np.array([0, *(group.stop for group in packed.groups)]),
        "padded_starts": np.cumsum([0, *map(len, places)]),
        "places": np.concatenate(places)[:, None],
        "allowed": np.concatenate([mask.ravel() for mask in allowed]),
        "real": np.concatenate([np.argwhere(mask) for mask in allowed]),
    }
    if not config.source_vocabulary or config.positions == "none":
        del arrays["positions"]  # the engine refuses an input that nothing reads
    return {name: paddle.to_tensor(array) for name, array in arrays.items()}


# ``not_to_static``: the programs have no ``if`` or loop over tensors in Python and read no unknown size from ``shape``,
# so Paddle need not rewrite their source, which would take seconds at the first call.
@paddle.jit.not_to_static
def encode(transformer: Transformer, inputs: Mapping[str, Tensor]) -> Tensor:
    """Return the output of the encoder, (B, S, D), zero at padding tokens.

    ``inputs``: to pack the batch, also those of ``packing``.
    """
    if "tokens" not in inputs:
        return encode_padded(transformer, inputs)
    tokens, x = encode_packed(transformer, inputs)
    return unpacked(x, tokens, inputs["valid"])


def encode_padded(transformer: Any, inputs: Mapping[str, Tensor]) -> Tensor:
    """Return the output of the encoder, (B, S, D), zero at padding tokens."""
    valid = inputs["valid"]
    shape = paddle.shape(valid)
    if transformer.config.positions_skip_padding:
        positions = (valid.astype("int64").cumsum(axis=1) - 1).clip(min=0)
    else:
        positions = paddle.arange(shape[1]).expand(shape)
    flat = {name: inputs[name].flatten(0, 1) for name in NAMES if name in inputs}
    x = embedded(transformer, flat, positions.flatten())
    x = transformer.encoder(x.reshape([*shape, x.shape[1]]), inputs)
    return x.masked_fill(~valid[:, :, None], 0.0)


def encode_packed(transformer: Any, inputs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return the indices of the N real tokens, and the output of the encoder for them, (N, D).

    ``inputs``: also those of ``packing``.
    """
    tokens = inputs["tokens"]
    packed = {name: paddle.gather(inputs[name].flatten(0, 1), tokens) for name in NAMES if name in inputs}
    return tokens, transformer.encoder(embedded(transformer, packed, inputs.get("positions")), inputs)


def embedded(transformer: Any, tokens: Mapping[str, Tensor], positions: Tensor | None) -> Tensor:
    """Return the embeddings of tokens, (N, D), from their inputs by name, (N, ...), and their positions, (N,)."""
    if not transformer.config.source_vocabulary:
        return tokens["source"]
    # Each token is a row of its own, which begins at its position.
    ids = [tokens[name][:, None] if name in tokens else None for name in NAMES]
    return transformer.embeddings(*ids, 0 if positions is None else positions[:, None])[:, 0]


@paddle.jit.not_to_static
def run(transformer: Transformer, inputs: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the output of the encoder, and the outputs of the heads by name. ``inputs``: as in ``encode``."""
    x = encode(transformer, inputs)
    token_table = transformer.embeddings.token.weight if transformer.config.tied_embeddings else None
    return x, transformer.heads(x, inputs["valid"], token_table)


class PackedAttention(nn.Layer):
    """Self-attention in groups of rows."""

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
        projected = queries, keys, values
        # The loop is part of the program, which serves any number of groups. The first group is outside, because the
        # engine cannot begin with a context of no tokens.
        first, end = paddle.zeros([1], "int64"), paddle.shape(groups["rows"])[0]
        _, context = cast(
            "list[Tensor]",
            paddle.static.nn.while_loop(
                lambda group, _: group < end,
                lambda group, context: [group + 1, paddle.concat([context, self.attend(*projected, groups, group)])],
                [first + 1, self.attend(*projected, groups, first)],
            ),
        )
        return context

    def attend(
        self, queries: Tensor, keys: Tensor, values: Tensor, groups: Mapping[str, Tensor], group: Tensor
    ) -> Tensor:
        """Return the contexts of the real tokens of a group. queries, keys, values: (N, ...). group: index, (1,)."""
        rows = paddle.gather(groups["rows"], group)
        places = part(groups["places"], groups["padded_starts"], group).reshape([rows, -1, 1])
        allowed = part(groups["allowed"], groups["padded_starts"], group).reshape([rows, 1, 1, -1])
        real = part(groups["real"], groups["starts"], group).reshape([-1, 2])
        queries, keys, values = (paddle.gather_nd(x, places) for x in (queries, keys, values))
        return paddle.gather_nd(self.attend_rows(queries, keys, values, allowed), real)

    def attend_rows(self, queries: Tensor, keys: Tensor, values: Tensor, allowed: Tensor) -> Tensor:
        """Return the contexts of rows, (G, L, H * size). queries, keys, values: (G, L, H * size).

        allowed: bool (G, 1, 1, L), True for real tokens.
        """
        config = self.config
        queries, keys = self.split_heads(queries, config.key_size), self.split_heads(keys, config.key_size)
        scores = paddle.matmul(queries * exact(config.key_size**-0.5, queries.dtype), keys, transpose_y=True)
        # The engine adds a mask as a part of the product. The logarithm is 0 or minus infinity, and every row has a
        # real token.
        weights = functional.softmax(scores + paddle.log(allowed.astype(scores.dtype)), axis=-1)
        context = paddle.matmul(weights, self.split_heads(values, config.value_size)).transpose([0, 2, 1, 3])
        return context.reshape([0, 0, config.heads * config.value_size])

    def split_heads(self, x: Tensor, size: int) -> Tensor:
        """Split the last axis into heads: (G, L, H * size) to (G, H, L, size)."""
        return x.reshape([0, 0, self.config.heads, size]).transpose([0, 2, 1, 3])


class PaddedAttention(PackedAttention):
    """Self-attention in the rows of the batch, with its padding."""

    def contexts(self, queries: Tensor, keys: Tensor, values: Tensor, groups: Mapping[str, Tensor]) -> Tensor:
        """Return the contexts of all tokens, (B, S, H * size). queries, keys, values: (B, S, H * size)."""
        return self.attend_rows(queries, keys, values, groups["valid"][:, None, None, :])


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


def part(array: Tensor, starts: Tensor, group: Tensor) -> Tensor:
    """Return the part of an array that belongs to a group."""
    return paddle.slice(array, [0], [paddle.gather(starts, group)], [paddle.gather(starts, group + 1)])


def with_attention(transformer: Transformer, kind: type[PackedAttention]) -> Any:
    """Return the same transformer for packed tokens. The weights are shared with the original."""
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
