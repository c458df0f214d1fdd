"""Embeddings: turn token ids into vectors, the sums of token, position, segment and task embeddings.

Shapes: B batch, S length, D hidden size, E embedding size, which is D unless the configuration says otherwise.
"""

import paddle
from paddle import Tensor, nn

from triglot.shared.model import positions
from triglot.shared.model.config import ModelConfig
from triglot.shared.model.probe import Probe, observe, under

from .masks import exact
from .process import PrePostProcess


class Embeddings(nn.Layer):
    """The sum of the embeddings that the configuration names, then a process, and for ``embedding_size`` a projection.

    ``vocabulary`` and ``max_length`` are the source's or the target's. Segments come from BERT (Devlin et al. 2018),
    tasks from ERNIE 2.0 (Sun et al. 2019), positions that skip padding from RoBERTa (Liu et al. 2019), the projection
    from ELECTRA (Clark et al. 2020), the scale and sinusoidal positions from "Attention is all you need" (sections 3.4
    and 3.5), and sinusoidal positions with a separate angle for each dimension from article 000.
    """

    def __init__(self, vocabulary: int, max_length: int, config: ModelConfig) -> None:
        super().__init__()
        self.max_length = max_length
        self.config = config
        size = config.embedding_width
        self.token = nn.Embedding(vocabulary, size)
        if config.positions == "learned":
            self.position = nn.Embedding(config.position_offset + max_length, size)
        elif config.positions != "none":
            self.table = positions.Table(config.positions, max_length, size)
        if config.segments:
            self.segment = nn.Embedding(config.segments, size)
        if config.tasks:
            self.task = nn.Embedding(config.tasks, size)
        self.process = PrePostProcess(config.embedding_process, config.embedding_dropout, config, size)
        if config.embedding_size:
            self.projection = nn.Linear(size, config.hidden_size)

    def forward(
        self,
        token_ids: Tensor,
        valid: Tensor | None,
        segment_ids: Tensor | None,
        task_ids: Tensor | None,
        first_position: int | Tensor = 0,
        probe: Probe | None = None,
    ) -> Tensor:
        """Return the embeddings, (B, S, D). token_ids, segment_ids, task_ids: (B, S). valid: bool (B, S).

        ``first_position`` is the position of the first token. It is above 0 when a decoder reads one token at a time.
        """
        length = paddle.shape(token_ids)[1]  # token_ids.shape[1] is -1 in a program that serves every length
        position_ids = paddle.arange(length) + first_position
        if self.config.positions_skip_padding:
            assert valid is not None  # only a target has none, and a model with a target skips no padding
            position_ids = (valid.astype("int64").cumsum(axis=1) - 1).clip(min=0) + first_position
        x = self.token(token_ids)
        if self.config.embedding_scale:
            x = x * exact(self.config.hidden_size**0.5, x.dtype)
        if self.config.positions == "learned":
            x = x + self.position(position_ids + self.config.position_offset)
        elif self.config.positions != "none":
            x = x + paddle.to_tensor(self.table.array, dtype=x.dtype)[position_ids]
        if self.config.segments:
            assert segment_ids is not None  # only a target has none, and a model with a target has no segments
            x = x + self.segment(segment_ids)
        if self.config.tasks:
            assert task_ids is not None
            x = x + self.task(task_ids)
        x = observe(probe, "sum", x)
        x = self.process(x, probe=under(probe, "process"))
        if self.config.embedding_size:
            x = observe(probe, "projection", self.projection(x))
        return x
