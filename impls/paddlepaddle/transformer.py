"""The whole model: embeddings, encoder, decoder and heads, or attention alone.

Shapes: B batch, S source length, T target length, D hidden size.
"""

import paddle
from paddle import Tensor, nn

from triglot.shared.model.config import ModelConfig
from triglot.shared.model.probe import Probe, observe, under

from . import masks
from .attention import MultiHeadAttention
from .decoder import Decoder
from .embeddings import Embeddings
from .encoder import Encoder
from .heads import Heads


class Transformer(nn.Layer):
    """A Transformer as ``config`` describes it: an encoder, an encoder-decoder, or one attention layer."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        if config.source_vocabulary:
            self.embeddings = Embeddings(config.source_vocabulary, config.source_max_length, config)
        if config.kind == "attention":
            self.attention = MultiHeadAttention(config)
        else:
            self.encoder = Encoder(config)
        if config.kind == "encoder_decoder":
            if config.target_vocabulary and not config.shared_embeddings:
                vocabulary, max_length = config.target_vocabulary, config.target_max_length
                self.target_embeddings = Embeddings(vocabulary, max_length, config)
            self.decoder = Decoder(config)
        self.heads = Heads(config)

    def forward(
        self,
        source: Tensor,
        valid: Tensor,
        segment_ids: Tensor | None = None,
        task_ids: Tensor | None = None,
        target: Tensor | None = None,
        target_valid: Tensor | None = None,
        probe: Probe | None = None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the last layer's output, zero at padding tokens, and the outputs of the heads by name.

        source: token ids (B, S), or vectors (B, S, D) if the model has no vocabulary. valid: bool (B, S), True for real
        tokens. segment_ids, task_ids: (B, S). A decoder also needs target: token ids (B, T), or vectors (B, T, D), and
        target_valid: bool (B, T). The output is (B, S, D) for an encoder and (B, T, D) for a decoder.
        """
        x = self.encode(source, valid, segment_ids, task_ids, probe)
        if self.config.kind == "encoder_decoder":
            assert target is not None
            assert target_valid is not None
            x = self.decode(target, target_valid, x, valid, probe)
            valid = target_valid
        token_table = self.embeddings.token.weight if self.config.tied_embeddings else None
        return x, self.heads(x, valid, token_table, probe=under(probe, "heads"))

    def encode(
        self,
        source: Tensor,
        valid: Tensor,
        segment_ids: Tensor | None = None,
        task_ids: Tensor | None = None,
        probe: Probe | None = None,
    ) -> Tensor:
        """Return the output of the encoder, (B, S, D), zero at padding tokens."""
        x = source
        if self.config.source_vocabulary:
            x = self.embeddings(x, valid, segment_ids, task_ids, probe=under(probe, "embeddings"))
        x = self.encoder(x, masks.padding(valid), probe=under(probe, "encoder"))
        return observe(probe, "output", x.masked_fill(~valid[:, :, None], paddle.zeros([], x.dtype)))

    def decode(
        self, target: Tensor, target_valid: Tensor, memory: Tensor, valid: Tensor, probe: Probe | None = None
    ) -> Tensor:
        """Return the output of the decoder, (B, T, D), zero at padding tokens. memory: (B, S, D), from ``encode``."""
        x = target
        if self.config.target_vocabulary:
            x = self.embed_target(target, probe=probe)
        # target.shape[1] is -1 in a program that serves every length.
        allowed = masks.combine(masks.padding(target_valid), masks.causal(paddle.shape(target)[1]))
        x = self.decoder(x, allowed, memory, masks.padding(valid), probe=under(probe, "decoder"))
        return observe(probe, "decoded", x.masked_fill(~target_valid[:, :, None], paddle.zeros([], x.dtype)))

    def embed_target(self, target: Tensor, first_position: int | Tensor = 0, probe: Probe | None = None) -> Tensor:
        """Return the embedded target, (B, T, D). ``first_position`` is the position of its first token."""
        embeddings = self.embeddings if self.config.shared_embeddings else self.target_embeddings
        return embeddings(target, None, None, None, first_position, probe=under(probe, "target_embeddings"))

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        allowed: Tensor,
        bias: Tensor,
        probe: Probe | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the output, (B, T, D), and the weights averaged over heads, (B, T, S), of a model that only attends.

        The arguments are those of ``MultiHeadAttention``.
        """
        output, weights = self.attention(query, key, value, allowed, bias, probe=under(probe, "attention"))
        return output, observe(probe, "averaged", weights.mean(axis=1))
