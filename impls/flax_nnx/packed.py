"""The encoder for deployment on a CPU: padding costs little, and few programs are compiled.

It is the module of ``transformer.py`` with another attention. Everything else treats every token alike, so it runs as
it is on packed tokens, (N, D), in place of (B, S, D). ``shared/inputs/packing.py`` says which tokens are where. The
program of the encoder depends only on N, which is a bucket, and on the number of window lengths
(``shared/inputs/buckets.py``), so a new batch rarely needs a new program.

Shapes: B batch, S length, N packed tokens, D hidden size; L tokens in a window; H heads, K key size, V value size.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax import Array, lax
from jax import numpy as jnp

from triglot.shared.inputs.buckets import WINDOW_STEPS, Windows, bucket, lengths_of, windows_of
from triglot.shared.inputs.packing import Packing, pack
from triglot.shared.model.config import ModelConfig
from triglot.shared.model.probe import Probe

from . import execution
from .attention import MultiHeadAttention
from .masks import masked_softmax
from .transformer import Transformer

NAMES = ("source", "valid", "segment_ids", "task_ids")  # the inputs of an encoder
TOKEN_HEADS = ("masked_lm", "token_classifier", "replaced_token")  # score each token alone; the others score rows


class Packed:
    """A transformer on packed tokens. It shares the weights of the original."""

    def __init__(self, transformer: Transformer) -> None:
        self.config = transformer.config
        self.encode_padded = compiled(execution.encode, transformer)
        self.run_padded = compiled(execution.run, transformer)
        self.encoder = compiled(encode, with_attention(transformer))
        heads = self.config.heads_on_top
        self.token_heads = self.row_heads = None
        if token_heads := [name for name in heads if name in TOKEN_HEADS]:
            self.token_heads = compiled(score_tokens, with_heads(transformer, token_heads))
        if row_heads := [name for name in heads if name not in TOKEN_HEADS]:
            self.row_heads = compiled(score_rows, with_heads(transformer, row_heads))

    def encode(self, inputs: Mapping[str, Array]) -> Array:
        """Return the output of the encoder, (B, S, D), zero at padding tokens. ``inputs``: see ``execution.py``."""
        if needs_no_packing(inputs["valid"]):
            return self.encode_padded(inputs)
        packing, x = self.encode_packed(inputs)
        return unpacked(x, packing.tokens, inputs["valid"].shape)

    def run(self, inputs: Mapping[str, Array]) -> tuple[Array, dict[str, Array]]:
        """Return the output of the encoder, and the outputs of the heads by name."""
        if needs_no_packing(inputs["valid"]):
            return self.run_padded(inputs)
        packing, x = self.encode_packed(inputs)
        shape = inputs["valid"].shape
        output = unpacked(x, packing.tokens, shape)
        heads: dict[str, Array] = {}
        if self.token_heads:
            heads |= {name: unpacked(scores, packing.tokens, shape) for name, scores in self.token_heads(x).items()}
        if self.row_heads:
            results = self.row_heads(*widened(output, inputs["valid"]))
            heads |= {name: first_rows(result, shape[0]) for name, result in results.items()}
        return output, {name: heads[name] for name in self.config.heads_on_top}

    def encode_packed(self, inputs: Mapping[str, Array]) -> tuple[Packing, Array]:
        """Return the packing of a batch, and the output of the encoder for its tokens, (N, D); the rest is padding."""
        packing, arrays = packed_inputs(self.config, inputs)
        return packing, self.encoder(arrays)


def packed_inputs(
    config: ModelConfig, inputs: Mapping[str, Array], names: Collection[str] = NAMES
) -> tuple[Packing, dict[str, Any]]:
    """Return the packing of a batch, and the inputs of a program on packed tokens, by name.

    They are the arrays in ``names`` that the batch has, (N, ...), "positions", int32 (N,), and "windows" (``Windows``).
    """
    packing = pack(np.asarray(inputs["valid"]), skip_padding=config.positions_skip_padding)
    size = bucket(len(packing.tokens))

    def packed(name: str) -> np.ndarray:
        array = np.asarray(inputs[name])
        return padded(array.reshape(-1, *array.shape[2:])[packing.tokens], size)

    arrays: dict[str, Any] = {name: packed(name) for name in names if name in inputs}
    arrays["positions"] = padded(packing.positions.astype(np.int32), size)
    arrays["windows"] = windows_of(packing.lengths, size, config.source_max_length)
    return packing, arrays


def encode(transformer: Any, packed: Mapping[str, Any]) -> Array:
    """Return the output of the encoder for packed tokens, (N, D). ``packed``: see ``packed_inputs``."""
    x = packed["source"]
    if transformer.config.source_vocabulary:  # each token is a row of its own, which begins at its position
        ids = [packed[name][:, None] if name in packed else None for name in ("valid", "segment_ids", "task_ids")]
        x = transformer.embeddings(x[:, None], *ids, packed["positions"][:, None])[:, 0]
    return transformer.encoder(x, packed["windows"])


def score_tokens(transformer: Transformer, x: Array) -> dict[str, Array]:
    """Return the outputs of the heads by name, (N, ...). x: packed tokens, (N, D); each is a row of its own."""
    token_table = transformer.embeddings.token.embedding[...] if transformer.config.tied_embeddings else None
    heads = transformer.heads(x[:, None], jnp.ones((len(x), 1), jnp.bool_), token_table)
    return {name: scores[:, 0] for name, scores in heads.items()}


def score_rows(transformer: Transformer, x: Array, valid: Array) -> dict[str, Array]:
    """Return the outputs of the heads by name, (B, ...). x: (B, S, D). valid: bool (B, S), True for real tokens."""
    return transformer.heads(x, valid, None)


class PackedAttention(nnx.Module):
    """Self-attention, row by row. It shares the weights of the layer that it replaces."""

    def __init__(self, attention: MultiHeadAttention) -> None:
        self.config = attention.config
        self.query, self.key, self.value = attention.query, attention.key, attention.value
        self.output = attention.output

    def __call__(
        self, query: Array, key: Array, value: Array, windows: Windows, probe: Probe | None = None
    ) -> tuple[Array, None]:
        """Return the output, (N, D), and no weights. query, key and value are the same packed tokens, (N, D)."""
        projected = self.query(query), self.key(key), self.value(value)
        output = self.output(attend_traced_once(self.config, windows, *projected))
        return jax.nn.relu(output) if self.config.attention_output_activation == "relu" else output, None


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def attend(config: ModelConfig, windows: Windows, queries: Array, keys: Array, values: Array) -> Array:
    """Return the contexts of all tokens, (N, H * V). queries, keys: (N, H * K). values: (N, H * V)."""
    projected = queries, keys, values

    def fill_in(row: Array, context: Array, length: int) -> Array:
        begin, own = window(row, windows, len(context), length)
        return write(context, attend_window(config, own, *(read(x, begin, own) for x in projected)), begin, own)

    return for_each_row(config, windows, jnp.zeros_like(values), fill_in)


def attend_forward(config: ModelConfig, windows: Windows, *projected: Array) -> tuple[Array, Any]:
    """Return the contexts, (N, H * V), and the inputs, which ``attend_backward`` needs."""
    return attend(config, windows, *projected), (windows, projected)


def attend_backward(config: ModelConfig, saved: Any, gradient: Array) -> tuple[Any, ...]:
    """Return no gradient of the windows, and those of queries, keys and values. gradient: (N, H * V).

    Written by hand, because JAX cannot differentiate a loop of unknown length in reverse. The attention weights of
    each window are recomputed, which takes less time than storing and reading them.
    """
    windows, projected = saved

    def fill_in(row: Array, gradients: tuple[Array, ...], length: int) -> tuple[Array, ...]:
        begin, own = window(row, windows, len(gradient), length)
        _, pull_back = jax.vjp(partial(attend_window, config, own), *(read(x, begin, own) for x in projected))
        pairs = zip(gradients, pull_back(read(gradient, begin, own)), strict=True)
        return tuple(write(whole, part, begin, own) for whole, part in pairs)

    return None, *for_each_row(config, windows, tuple(map(jnp.zeros_like, projected)), fill_in)


attend.defvjp(attend_forward, attend_backward)
# Under a jit of its own, so that JAX traces the loops once, and not again in each layer.
attend_traced_once = jax.jit(attend, static_argnums=0)


def for_each_row(config: ModelConfig, windows: Windows, filled: Any, fill_in: Callable[..., Any]) -> Any:
    """Call ``filled = fill_in(row, filled, length)`` for every row, and return ``filled``. ``length``: of its window.

    There is a loop for each window length, with one iteration for each row that needs it. So one program serves every
    batch of N tokens whose longest row needs the same windows.
    """
    for i, length in enumerate(lengths_of(windows, config.source_max_length)):
        filled = lax.fori_loop(windows.bounds[i], windows.bounds[i + 1], partial(fill_in, length=length), filled)
    return filled


def window(row: Array, windows: Windows, tokens: int, length: int) -> tuple[Array, Array]:
    """Return where the window of a row begins, and which of its tokens belong to the row, bool (L,)."""
    begin = jnp.minimum(windows.starts[row], tokens - length)  # the window ends where the tokens end
    place = begin + jnp.arange(length) - windows.starts[row]
    return begin, (place >= 0) & (place < windows.lengths[row])


def read(x: Array, begin: Array, own: Array) -> Array:
    """Return the tokens of a window, (L, ...). x: (N, ...). own: bool (L,).

    Tokens of other rows become zeros, because an attention weight of zero would not hide their NaN: 0 * NaN is NaN.
    """
    return jnp.where(own[:, None], lax.dynamic_slice_in_dim(x, begin, len(own)), 0.0)


def write(x: Array, part: Array, begin: Array, own: Array) -> Array:
    """Return x, (N, ...), in which ``part``, (L, ...), replaces the own tokens of a window. own: bool (L,)."""
    others = lax.dynamic_slice_in_dim(x, begin, len(own))
    return lax.dynamic_update_slice_in_dim(x, jnp.where(own[:, None], part, others), begin, 0)


def attend_window(config: ModelConfig, own: Array, queries: Array, keys: Array, values: Array) -> Array:
    """Return the context of one row, (L, H * V). own: bool (L,). queries, keys: (L, H * K). values: (L, H * V)."""
    queries, keys, values = (x.reshape(len(own), config.heads, -1).swapaxes(0, 1) for x in (queries, keys, values))
    scores = jnp.matmul(queries * config.key_size**-0.5, keys.swapaxes(-1, -2))
    return jnp.matmul(masked_softmax(scores, own, None, config), values).swapaxes(0, 1).reshape(len(own), -1)


def compiled(program: Callable[..., Any], transformer: Transformer) -> Callable[..., Any]:
    """Return ``program`` bound to ``transformer`` and compiled for each shape."""
    graph, parameters = nnx.split(transformer, nnx.Param)
    # A flat list, because JAX takes 0.1 ms to read a state of Flax at each call.
    leaves, structure = jax.tree.flatten(parameters)

    def run(leaves: list[Array], *inputs: Any) -> Any:
        return program(nnx.merge(graph, jax.tree.unflatten(structure, leaves)), *inputs)

    return partial(jax.jit(run), leaves)


def with_attention(transformer: Transformer) -> Any:
    """Return the same transformer for packed tokens. The weights are shared with the original."""
    packed: Any = nnx.clone(transformer, variables=False)
    for layer in packed.encoder.layers:
        layer.attention = PackedAttention(layer.attention)
    return packed


def with_heads(transformer: Transformer, names: Collection[str]) -> Transformer:
    """Return the same transformer with these heads only. The weights are shared with the original."""
    other = nnx.clone(transformer, variables=False)
    for name in set(transformer.config.heads_on_top) - set(names):
        delattr(other.heads, name)
    return other


def needs_no_packing(valid: Array) -> bool:
    """Return whether the padded programs are faster: for a batch without padding, in a shape from the buckets."""
    rows, length = valid.shape
    recurs = length == bucket(length, WINDOW_STEPS) and rows * length == bucket(rows * length)
    return recurs and bool(np.asarray(valid).all())


def padded(x: np.ndarray, size: int) -> np.ndarray:
    """Return x, (n, ...), followed by zeros, (size, ...)."""
    return np.concatenate([x, np.zeros((size - len(x), *x.shape[1:]), x.dtype)])


def unpacked(x: Array, tokens: np.ndarray, shape: Sequence[int]) -> Array:
    """Return packed tokens where they are in the batch, (B, S, ...), and zero elsewhere. x: (N, ...)."""
    # In NumPy, because JAX would compile a program for each shape.
    batch = np.zeros((shape[0] * shape[1], *x.shape[1:]), x.dtype)
    batch[tokens] = np.asarray(x)[: len(tokens)]
    return jax.device_put(batch.reshape(*shape, *x.shape[1:]), x.device)


def widened(x: Any, valid: Any) -> tuple[Any, Any]:
    """Return x and valid with padding up to buckets of rows and of lengths. x: (B, S, D). valid: bool (B, S)."""
    rows, length = valid.shape
    missing = (0, bucket(rows, WINDOW_STEPS) - rows), (0, bucket(length, WINDOW_STEPS) - length)
    if missing == ((0, 0), (0, 0)):
        return x, valid
    return np.pad(x, (*missing, (0, 0))), np.pad(valid, missing)


def first_rows(x: Array, rows: int) -> Array:
    """Return the first rows of x."""
    return x if len(x) == rows else jax.device_put(np.asarray(x)[:rows], x.device)
