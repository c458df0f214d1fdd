"""The encoder for deployment on a CPU: padding costs nothing.

It is the module of ``transformer.py`` with another attention. Everything else treats every token alike, so it runs as
it is on packed tokens, (N, D), in place of (B, S, D). ``shared/inputs/packing.py`` says which tokens are where. The
program runs in Paddle's inference engine, which lays out the weights for oneDNN's kernels and fuses the activations.

Shapes: B batch, S length, N real tokens in the batch, D hidden size, V vocabulary; G rows of at most L tokens in a
group; H heads; n groups, which have P tokens when they are padded.
"""

import copy
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, TypeVar, cast

import numpy as np
import paddle
from paddle import Tensor, nn
from paddle.nn import functional

from triglot.shared.inputs.packing import pack
from triglot.shared.model.config import ModelConfig
from triglot.shared.model.probe import Probe

from .attention import MultiHeadAttention
from .execution import in_mode
from .heads import MaskedLM
from .masks import exact
from .transformer import Transformer

AnyLayer = TypeVar("AnyLayer", bound=nn.Layer)


class Packed:
    """A transformer on packed tokens, in the inference engine, which has copies of the weights."""

    def __init__(self, transformer: Transformer) -> None:
        self.config = transformer.config
        packed: Any = with_attention(transformer, PackedAttention)
        if "masked_lm" in self.config.heads_on_top:
            packed = swapped(packed, heads=swapped(packed.heads, masked_lm=PackedMaskedLM(packed.heads.masked_lm)))
        self.programs = {program: in_mode("compiled", program, packed) for program in (encode, run)}

    def encode(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return the output of the encoder, (B, S, D), zero at padding tokens. ``inputs``: see ``execution.py``."""
        return self.programs[encode]({**inputs, **packing(self.config, inputs["valid"])})

    def run(self, inputs: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the output of the encoder, and the outputs of the heads by name."""
        return self.programs[run]({**inputs, **packing(self.config, inputs["valid"])})


def packing(config: ModelConfig, valid: Tensor) -> dict[str, Tensor]:
    """Return the packing of a batch as inputs of a program, by name. valid: bool (B, S), True for real tokens.

    "tokens" and "positions", (N,): see ``packing.Packing``. "rows", (n,): the number of rows of each group.
    "starts" and "padded_starts", (n + 1,): where each group begins among the N tokens, and among the P tokens of
    all padded groups. "places", (P, 1): the index of the packed token at each of them. "allowed", bool (P,): True
    for real tokens. "real", (N, 2): the row and the column of each real token in its group.
    """
    packed = pack(valid.numpy(), skip_padding=config.positions_skip_padding)
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
    """Return the output of the encoder, (B, S, D). ``inputs``: also those of ``packing``."""
    tokens, x = encode_packed(transformer, inputs)
    return unpacked(x, tokens, inputs["valid"])


def encode_packed(transformer: Any, inputs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return the indices of the N real tokens, and the output of the encoder for them, (N, D).

    ``inputs``: as in ``encode``.
    """
    tokens = inputs["tokens"]
    names = [name for name in ("source", "valid", "segment_ids", "task_ids") if name in inputs]
    packed = {name: paddle.gather(inputs[name].flatten(0, 1), tokens) for name in names}
    x = packed["source"]
    if transformer.config.source_vocabulary:  # each token is a row of its own, which begins at its position
        ids = [packed[name][:, None] if name in packed else None for name in ("valid", "segment_ids", "task_ids")]
        positions = inputs["positions"][:, None] if "positions" in inputs else 0
        x = transformer.embeddings(x[:, None], *ids, positions)[:, 0]
    return tokens, transformer.encoder(x, inputs)


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
        config = self.config
        rows = paddle.gather(groups["rows"], group)
        places = part(groups["places"], groups["padded_starts"], group).reshape([rows, -1, 1])
        allowed = part(groups["allowed"], groups["padded_starts"], group).reshape([rows, 1, 1, -1])
        real = part(groups["real"], groups["starts"], group).reshape([-1, 2])
        queries = self.pad(queries, places, config.key_size)
        keys = self.pad(keys, places, config.key_size)
        values = self.pad(values, places, config.value_size)
        scores = paddle.matmul(queries * exact(config.key_size**-0.5, queries.dtype), keys, transpose_y=True)
        # The engine adds a mask as a part of the product. The logarithm is 0 or minus infinity, and every row of a
        # group has a real token.
        weights = functional.softmax(scores + paddle.log(allowed.astype(scores.dtype)), axis=-1)
        context = paddle.matmul(weights, values).transpose([0, 2, 1, 3])
        return paddle.gather_nd(context.reshape([0, 0, config.heads * config.value_size]), real)

    def pad(self, x: Tensor, places: Tensor, size: int) -> Tensor:
        """Return the rows of a group, (G, H, L, size). x: (N, H * size). places: (G, L, 1)."""
        return paddle.gather_nd(x, places).reshape([0, 0, self.config.heads, size]).transpose([0, 2, 1, 3])


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
