"""The whole model: embeddings, encoder, heads.

Shapes: B batch, S length, D hidden size.
"""

import numpy as np
from numpy import ndarray

from ...shared.config import ModelConfig
from ...shared.probe import Probe, observe, under
from . import masks
from .embeddings import Embeddings
from .encoder import Encoder
from .heads import Heads


class Transformer:
    """A Transformer as ``config`` describes it.

    source: token ids (B, S), or vectors (B, S, D) for a model without a vocabulary. valid: bool (B, S), True for
    real tokens. segment_ids, task_ids: (B, S). The output (B, S, D) is zero at padding tokens.
    """

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        if config.source_vocabulary:
            self.embeddings = Embeddings(config)
        self.encoder = Encoder(config)
        self.heads = Heads(config)

    def __call__(
        self,
        source: ndarray,
        valid: ndarray,
        segment_ids: ndarray,
        task_ids: ndarray,
        probe: Probe | None = None,
    ) -> tuple[ndarray, dict[str, ndarray]]:
        """The output of the encoder, and the heads by name."""
        x = self.encode(source, valid, segment_ids, task_ids, probe)
        tokens = self.embeddings.token.weight if self.config.tied_embeddings else None
        return x, self.heads(x, valid, tokens, probe=under(probe, "heads"))

    def encode(
        self,
        source: ndarray,
        valid: ndarray,
        segment_ids: ndarray,
        task_ids: ndarray,
        probe: Probe | None = None,
    ) -> ndarray:
        """The output of the encoder."""
        x = source
        if self.config.source_vocabulary:
            x = self.embeddings(x, segment_ids, task_ids, probe=under(probe, "embeddings"))
        x = self.encoder(x, masks.padding(valid), probe=under(probe, "encoder"))
        return observe(probe, "output", np.where(valid[:, :, None], x, 0.0))
