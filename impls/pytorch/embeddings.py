"""From token ids to vectors: token, position, segment and task embeddings, summed.

Shapes: B batch, S length, D hidden size.
"""

import torch
from torch import Tensor, nn

from triglot.shared.model import positions
from triglot.shared.model.config import ModelConfig
from triglot.shared.model.probe import Probe, observe, under

from .process import PrePostProcess


class Embeddings(nn.Module):
    """The sum of the embeddings that the configuration names, then a process. token_ids, segment_ids, task_ids: (B, S).

    Returns (B, S, D). ``vocabulary`` and ``max_length`` are those of the source or of the target; ``first`` is the
    position of the first token. Segments are BERT's
    (Devlin et al. 2018), tasks ERNIE 2.0's (Sun et al. 2019), sinusoidal positions and the scale those of "Attention is
    all you need", sections 3.4 and 3.5, but for the ones with an angle for each dimension, which article 000 has.
    """

    def __init__(self, vocabulary: int, max_length: int, config: ModelConfig) -> None:
        super().__init__()
        self.max_length = max_length
        self.config = config
        self.token = nn.Embedding(vocabulary, config.hidden_size)
        if config.positions == "learned":
            self.position = nn.Embedding(config.position_offset + max_length, config.hidden_size)
        elif config.positions != "none":
            # A tensor, which its compiler can guard, and a real one where the weights are but shapes.
            self.table = torch.tensor(
                positions.Table(config.positions, max_length, config.hidden_size).array, device="cpu"
            )
        if config.segments:
            self.segment = nn.Embedding(config.segments, config.hidden_size)
        if config.tasks:
            self.task = nn.Embedding(config.tasks, config.hidden_size)
        self.process = PrePostProcess(config.embedding_process, config.embedding_dropout, config)

    def forward(
        self,
        token_ids: Tensor,
        segment_ids: Tensor | None,
        task_ids: Tensor | None,
        first: int | Tensor = 0,
        probe: Probe | None = None,
    ) -> Tensor:
        length = token_ids.shape[1]
        places = torch.arange(length, device=token_ids.device) + first
        x = self.token(token_ids)
        if self.config.embedding_scale:
            x = x * self.config.hidden_size**0.5
        if self.config.positions == "learned":
            x = x + self.position(places + self.config.position_offset)
        elif self.config.positions != "none":
            x = x + self.table.to(x.device, x.dtype)[places]
        if self.config.segments:
            assert segment_ids is not None  # targets have none, and ModelConfig refuses segments beside them
            x = x + self.segment(segment_ids)
        if self.config.tasks:
            assert task_ids is not None
            x = x + self.task(task_ids)
        x = observe(probe, "sum", x)
        return self.process(x, probe=under(probe, "process"))
