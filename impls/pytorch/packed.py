"""The encoder for deployment on a CPU: padding costs little, and weights are in the layout of oneDNN's kernels.

It is the module of ``transformer.py`` with other linear layers and another attention. Everything else treats every
token alike, so it runs as it is on packed tokens, (N, D), in place of (B, S, D). ``shared/inputs/packing.py`` says
which tokens are where.

Shapes: B batch, S length, N real tokens in the batch, D hidden size, V vocabulary; G rows of at most L tokens and
n real tokens in a group; H heads, K key size.
"""

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from triglot.shared.inputs.buckets import bucket
from triglot.shared.inputs.packing import Group, pack
from triglot.shared.model.config import ModelConfig
from triglot.shared.model.probe import Probe

from .attention import MultiHeadAttention
from .feed_forward import ACTIVATIONS, FeedForward
from .heads import MaskedLM
from .process import PrePostProcess
from .transformer import Transformer

# Our activations -> the names and algorithms of those that oneDNN can compute at the end of a product.
FUSED = {"none": ("none", ""), "relu": ("relu", ""), "gelu": ("gelu", "none"), "gelu_tanh": ("gelu", "tanh")}

LARGE = 2048  # tokens; a smaller batch without padding is not packed
MANY = 384  # tokens; from so many on, MKL is faster than oneDNN with AVX2, but not with AVX-512

# Spare tokens fill a batch up to a multiple of ``STEP``, or above 256 tokens, up to one of ``SIZES`` sizes between one
# power of two and the next, which adds 1% on average.
STEP, SIZES = 8, 32

# Attention scores, in bytes. Unless ``fused_attention_is_fast``, matrix products beat PyTorch's fused kernel if a group
# has enough scores, and if those of one row fit into the L2 cache of a core. Measured on two cores of an AMD EPYC, in
# float32 and bfloat16.
FEWEST_SCORES = 1 << 16
CACHED_SCORES = 1 << 20

AnyModule = TypeVar("AnyModule", bound=nn.Module)


class Packed:
    """A transformer on packed tokens. Its linear layers have copies of the weights."""

    def __init__(self, transformer: Transformer) -> None:
        self.config = transformer.config
        self.packed = with_layers(transformer, map(self.packed_layer, transformer.encoder.layers))
        self.heads = transformer.heads
        if "pooler" in self.config.heads_on_top:
            self.heads = swapped(self.heads, pooler=PackedLinear(self.heads.pooler.weight, self.heads.pooler.bias))
        if "masked_lm" in self.config.heads_on_top:
            table = transformer.embeddings.token.weight if self.config.tied_embeddings else None
            self.heads = swapped(self.heads, masked_lm=PackedMaskedLM(self.heads.masked_lm, table, self.config))

    def packed_layer(self, layer: Any) -> nn.Module:
        """Return a layer of the encoder that reads packed tokens, and the groups of their rows in place of a mask."""
        processes = {name: child for name, child in layer.named_children() if isinstance(child, PrePostProcess)}
        return swapped(
            layer,
            attention=PackedAttention(self.config, *packed_linears(layer.attention)),
            feed_forward=PackedFeedForward(layer.feed_forward, self.config),
            **{name: without_dropout(process) for name, process in processes.items()},
        )

    def encode(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return the output of the encoder, (B, S, D), zero at padding tokens. ``inputs``: see ``execution.py``."""
        valid = inputs["valid"]
        if valid.numel() < LARGE and valid.all():
            return encode_full(self.packed, inputs)
        tokens, x = encode_packed(self.packed, inputs)
        return unpacked(x, tokens, valid.shape)

    def run(self, inputs: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the output of the encoder, and the outputs of the heads by name."""
        x = self.encode(inputs)
        return x, self.heads(x, inputs["valid"], None)


def encode_full(transformer: Any, inputs: Mapping[str, Tensor]) -> Tensor:
    """Return the output of the encoder, (B, S, D), for a small batch without padding, for which packing takes too long.

    The arguments are those of ``encode_packed``.
    """
    x, valid = inputs["source"], inputs["valid"]
    if transformer.config.source_vocabulary:
        x = transformer.embeddings(x, valid, inputs.get("segment_ids"), inputs.get("task_ids"))
    rows, length = valid.shape
    group = PlacedGroup(Group(0, rows * length, rows, length, None, None), x.dtype)
    x = transformer.encoder(with_spares(x.flatten(0, 1)), [group])
    return x[: rows * length].unflatten(0, (rows, length))


def encode_packed(transformer: Any, inputs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return the indices of the N real tokens, and the output of the encoder for them, (N, D).

    ``transformer``: one whose attention takes packed tokens. ``inputs``: see ``execution.py``.
    """
    config = transformer.config
    packing = pack(inputs["valid"].numpy(), skip_padding=config.positions_skip_padding)
    number = len(packing.tokens)
    tokens, positions = (with_spares(torch.from_numpy(array)) for array in (packing.tokens, packing.positions))
    names = [name for name in ("source", "valid", "segment_ids", "task_ids") if name in inputs]
    packed = {name: inputs[name].flatten(0, 1).index_select(0, tokens) for name in names}
    x = packed["source"]
    if config.source_vocabulary:  # each token is a row of its own, which begins at its position
        ids = [packed[name][:, None] if name in packed else None for name in ("valid", "segment_ids", "task_ids")]
        x = transformer.embeddings(x[:, None], *ids, positions[:, None])[:, 0]
    x = transformer.encoder(x, [PlacedGroup(group, x.dtype) for group in packing.groups()])
    return tokens[:number], x[:number]


class PlacedGroup:
    """A group of rows as tensors, and its number of ``tokens``; see ``packing.Group``.

    ``mask``: (G, 1, 1, L), minus infinity at padding, to be added to scores in ``dtype``; None if there is no padding.
    """

    def __init__(self, group: Group, dtype: torch.dtype) -> None:
        self.tokens = group.stop - group.start
        self.shape = group.rows, group.length
        self.mask: Tensor | None = None
        if group.valid is not None:  # the kernel would convert a mask of bools in every layer
            zeros = torch.zeros(self.shape, dtype=dtype)
            self.mask = zeros.masked_fill(torch.from_numpy(~group.valid), float("-inf"))[:, None, None, :]
        self.places = None if group.places is None else torch.from_numpy(group.places)
        self.real = None if group.valid is None else torch.from_numpy(group.valid.ravel().nonzero()[0])

    def pad(self, x: Tensor) -> Tensor:
        """Return the rows, (G, L, ...). x: the real tokens of the group, (n, ...)."""
        return (x if self.places is None else x.index_select(0, self.places)).view(*self.shape, *x.shape[1:])

    def unpad(self, x: Tensor) -> Tensor:
        """Return the real tokens, (n, ...). x: (G, L, ...)."""
        flat = x.flatten(0, 1)
        return flat if self.real is None else flat.index_select(0, self.real)


class PackedLinear(nn.Module):
    """A linear layer and an activation. It has a copy of the weight in the blocks that oneDNN's kernels read."""

    def __init__(self, weight: Tensor, bias: Tensor | None, activation: str = "none") -> None:
        """weight: (out, in). bias: (out,)."""
        super().__init__()
        self.activation = ACTIVATIONS.get(activation, nn.Identity())
        self.is_fused = onednn_computes_fast(activation)
        self.fused = FUSED[activation if self.is_fused else "none"]
        # The kernel that torch.compile uses for frozen weights. None: for any number of tokens.
        self.blocks = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), None)
        self.weight = weight.detach() if mkl_is_faster_for_many() else None
        self.bias = None if bias is None else bias.detach()

    def forward(self, x: Tensor) -> Tensor:
        """Return (N, out). x: (N, in)."""
        if self.weight is not None and len(x) >= MANY:
            return self.activation(functional.linear(x, self.weight, self.bias))
        name, algorithm = self.fused
        x = torch.ops.mkldnn._linear_pointwise(x, self.blocks, self.bias, name, [], algorithm)
        return x if self.is_fused else self.activation(x)


class PackedFeedForward(nn.Module):
    """The feed-forward network. Its first layer computes the activation, too."""

    def __init__(self, feed_forward: FeedForward, config: ModelConfig) -> None:
        super().__init__()
        self.inner = PackedLinear(feed_forward.inner.weight, feed_forward.inner.bias, config.activation)
        self.output = PackedLinear(feed_forward.output.weight, feed_forward.output.bias)

    def forward(self, x: Tensor, probe: Probe | None = None) -> Tensor:
        """Return the output, (N, D). x: (N, D)."""
        return self.output(self.inner(x))


class PackedAttention(nn.Module):
    """Self-attention in groups of rows."""

    def __init__(self, config: ModelConfig, projections: nn.Module, output: nn.Module) -> None:
        """projections: returns query, key and value side by side."""
        super().__init__()
        self.config = config
        self.projections = projections
        self.output = output

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, groups: Sequence[PlacedGroup], probe: Probe | None = None
    ) -> tuple[Tensor, None]:
        """Return the output, (N, D), and no weights. query, key and value are the same packed tokens, (N, D)."""
        config = self.config
        sizes = [config.key_size, config.key_size, config.value_size]
        projected = self.projections(query)
        tokens = [group.tokens for group in groups]
        spares = len(query) - sum(tokens)
        contexts: list[Tensor] = []
        # Split once: if each group had its own slice, each slice's gradient would be as large as the whole tensor.
        for group, own in zip(groups, projected.split([*tokens, spares])[: len(groups)], strict=True):
            features = group.pad(own).split([config.heads * size for size in sizes], dim=-1)
            shape = *group.shape, config.heads, -1
            queries, keys, values = (each.view(shape).transpose(1, 2) for each in features)
            attended = attend(queries, keys, values, group.mask)
            contexts.append(group.unpad(attended.transpose(1, 2)).flatten(1))
        if spares:
            contexts.append(projected.new_zeros(spares, config.heads * config.value_size))
        output = self.output(torch.cat(contexts) if len(contexts) > 1 else contexts[0])
        return functional.relu(output) if config.attention_output_activation == "relu" else output, None


def attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """Return the context of each token, (G, H, L, value size).

    queries, keys: (G, H, L, K). values: (G, H, L, value size). mask: (G, 1, 1, L), added to the scores.
    """
    rows, heads, length, key_size = queries.shape
    row_scores = heads * length**2 * queries.itemsize
    products_are_slow = rows * row_scores < FEWEST_SCORES or row_scores > CACHED_SCORES
    if products_are_slow or fused_attention_is_fast(key_size, values.shape[-1]):
        return functional.scaled_dot_product_attention(queries, keys, values, mask)
    mask_of_heads = None if mask is None else mask.expand(-1, heads, -1, -1)
    # So that the scores of a block fit into the L2 caches of all cores.
    rows_of_block = torch.get_num_threads() * CACHED_SCORES // row_scores
    blocks = [each.split(rows_of_block) for each in (queries, keys, values, mask_of_heads) if each is not None]
    contexts = [attend_by_products(*block) for block in zip(*blocks, strict=True)]
    return torch.cat(contexts) if len(contexts) > 1 else contexts[0]


def fused_attention_is_fast(key_size: int, value_size: int) -> bool:
    """Return whether PyTorch's fused attention is as fast as matrix products, or faster, for rows of any length."""
    # Measured on two cores of two Intel Xeons. With fused attention, on one with AMX, MiniLM and BERT-base take 0.95 to
    # 0.99 times as long in float32, and 0.89 to 0.93 times in bfloat16. On one whose virtual machine hides AMX, they
    # take 0.97 to 1.01 times as long in float32, and 0.96 to 1.00 times in bfloat16. Fused attention computes only keys
    # and values of the same size.
    processor = torch.cpu.get_capabilities()
    hides_amx = "Intel" in processor.get("cpu_name", "") and processor.get("avx512_fp16")
    return key_size == value_size and bool(processor.get("amx_tile") or hides_amx)


def attend_by_products(queries: Tensor, keys: Tensor, values: Tensor, mask_of_heads: Tensor | None = None) -> Tensor:
    """Return the same as ``attend``, for all rows at once. mask_of_heads: (G, H, 1, L)."""
    shape = queries.shape[:2]
    queries, keys, values = (each.flatten(0, 1) for each in (queries, keys, values))
    # One operation scales the products and adds the mask; ``beta=0`` adds nothing.
    mask = queries.new_zeros(1) if mask_of_heads is None else mask_of_heads.flatten(0, 1)
    beta, scale = float(mask_of_heads is not None), queries.shape[-1] ** -0.5
    scores = torch.baddbmm(mask, queries, keys.mT, beta=beta, alpha=scale)
    return torch.bmm(scores.softmax(-1), values).unflatten(0, shape)


class PackedMaskedLM(nn.Module):
    """The scores over the vocabulary, computed for the real tokens only."""

    def __init__(self, head: MaskedLM, token_table: Tensor | None, config: ModelConfig) -> None:
        super().__init__()
        self.transform = PackedLinear(head.transform.weight, head.transform.bias, config.activation)
        self.norm = head.norm
        self.decoder = PackedLinear(head.decoder.weight if token_table is None else token_table, head.bias)

    def forward(self, x: Tensor, valid: Tensor, token_table: Tensor | None, probe: Probe | None = None) -> Tensor:
        """Return the scores, (B, S, V), zero at padding tokens. x: (B, S, D). valid: bool (B, S)."""
        tokens = valid.flatten().nonzero()[:, 0]
        packed = x.flatten(0, 1)[with_spares(tokens)]
        scores = self.decoder(self.norm(self.transform(packed)))[: len(tokens)]
        return unpacked(scores, tokens, valid.shape)


def packed_linears(attention: MultiHeadAttention) -> tuple[PackedLinear, PackedLinear]:
    """Return two linear layers of an attention: query, key and value in one, and the output."""
    return PackedLinear(*projection_parameters(attention)), PackedLinear(attention.output.weight, attention.output.bias)


def projection_parameters(attention: MultiHeadAttention) -> tuple[Tensor, Tensor | None]:
    """Return copies of the weights of query, key and value as one matrix, (out, in), and of their biases, (out,)."""
    projections = attention.query, attention.key, attention.value
    weight = torch.cat([projection.weight.detach() for projection in projections])
    if not attention.config.projection_bias:
        return weight, None
    return weight, torch.cat([projection.bias.detach() for projection in projections])


def has_kernels(dtype: str) -> bool:
    """Return whether this build of PyTorch has oneDNN, with kernels for a number format on this processor."""
    onednn = torch.backends.mkldnn.is_available()
    return onednn and (dtype != "bfloat16" or torch.ops.mkldnn._is_mkldnn_bf16_supported())


def onednn_computes_fast(activation: str) -> bool:
    """Return whether oneDNN should compute an activation: with AVX2 but not AVX-512, PyTorch's own GELU is faster."""
    # For 1,024 tokens of MiniLM on an AMD EPYC (Zen 3), a GELU took 3.7 ms in oneDNN, and 0.9 ms in PyTorch.
    return not activation.startswith("gelu") or torch.backends.cpu.get_cpu_capability() != "AVX2"


def mkl_is_faster_for_many() -> bool:
    """Return whether MKL, which PyTorch's own ``linear`` uses, multiplies many tokens faster than oneDNN."""
    # With AVX2, on two cores of an AMD EPYC (Zen 3), it is 6 to 13% faster from 384 tokens on, and slower below 256.
    # With AVX-512, oneDNN is faster, at least on an AMD EPYC (Zen 5).
    return torch.backends.mkl.is_available() and torch.backends.cpu.get_cpu_capability() == "AVX2"


def with_spares(x: Tensor) -> Tensor:
    """Return x, (N, ...), followed by copies of its last row, up to a size that recurs.

    Then the memory that one batch frees fits the next. In mode "compiled", oneDNN also prepares a kernel for each N and
    each shape of weights, which takes a millisecond or more. It keeps up to 1,024 kernels, about half a megabyte each.
    """
    spares = bucket(len(x), SIZES, STEP) - len(x)
    return torch.cat([x, x[-1:].expand(spares, *x.shape[1:])]) if spares else x


def with_layers(transformer: Transformer, layers: Iterable[nn.Module]) -> Transformer:
    """Return the same transformer with other layers in its encoder."""
    return swapped(transformer, encoder=swapped(transformer.encoder, layers=nn.ModuleList(layers)))


def swapped(module: AnyModule, **modules: nn.Module) -> AnyModule:
    """Return the same module with other children of these names. Everything else is shared with the original."""
    other = copy.copy(module)
    other._modules = {**module._modules, **modules}
    return other


def without_dropout(process: PrePostProcess) -> PrePostProcess:
    """Return the same process without its dropout, which does nothing here and takes time in a small batch."""
    other = copy.copy(process)
    other.commands = process.commands.replace("d", "")
    return other


def unpacked(x: Tensor, tokens: Tensor, shape: Sequence[int]) -> Tensor:
    """Return packed tokens where they are in the batch, (B, S, ...), and zero elsewhere. x: (N, ...)."""
    padded = x.new_zeros(shape[0] * shape[1], *x.shape[1:])
    return padded.index_copy_(0, tokens, x).unflatten(0, tuple(shape))
