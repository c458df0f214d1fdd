"""Heads: what turns the output of the encoder or of the decoder into predictions.

Shapes: B batch, S length, T target length, D hidden size, V vocabulary.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from triglot.shared.model.config import ModelConfig
from triglot.shared.model.probe import Probe, observe, under

from .feed_forward import ACTIVATIONS
from .masks import log_softmax
from .norms import NORMS


class MaskedLM(nn.Module):
    """Scores of every token of the vocabulary at every position (Devlin et al. 2018).

    With tied embeddings, the scores are products with the token embedding. Otherwise the head has a table of its own,
    the decoder.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.transform = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = ACTIVATIONS[config.activation]
        self.norm = NORMS[config.norm](config)
        if not config.tied_embeddings:
            self.decoder = nn.Embedding(config.source_vocabulary, config.hidden_size)
        self.bias = nn.Parameter(torch.zeros(config.source_vocabulary))

    def forward(self, x: Tensor, valid: Tensor, token_table: Tensor | None, probe: Probe | None = None) -> Tensor:
        """Return the scores, (B, S, V), zero at padding tokens.

        x: (B, S, D). valid: bool (B, S), True for real tokens. token_table: the token embedding, (V, D), if the
        embeddings are tied; else None.
        """
        x = observe(probe, "transform", self.transform(x))
        x = observe(probe, "activation", self.activation(x))
        x = observe(probe, "norm", self.norm(x))
        table = self.decoder.weight if token_table is None else token_table
        scores = functional.linear(x, table, self.bias)
        return torch.where(valid[:, :, None], scores, 0.0)


class Heads(nn.Module):
    """The heads that the configuration names.

    On an encoder: "pooler", the first token through a linear layer and tanh, (B, D); "masked_lm", see ``MaskedLM``; and
    "next_sentence", scores for a second segment that follows the first and for one that does not, (B, 2) (Devlin et
    al. 2018). On a decoder: "logits", scores of the target vocabulary for the next token, (B, T, V), or
    "log_probabilities", the log-softmax of such scores. Both are zero at padding tokens.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        if "logits" in config.heads_on_top:
            self.logits = nn.Linear(config.hidden_size, config.target_vocabulary)
        if "log_probabilities" in config.heads_on_top:
            self.log_probabilities = nn.Linear(config.hidden_size, config.target_vocabulary)
        if "pooler" in config.heads_on_top:
            self.pooler = nn.Linear(config.hidden_size, config.hidden_size)
        if "masked_lm" in config.heads_on_top:
            self.masked_lm = MaskedLM(config)
        if "next_sentence" in config.heads_on_top:
            self.next_sentence = nn.Linear(config.hidden_size, 2)

    def forward(
        self, x: Tensor, valid: Tensor, token_table: Tensor | None, probe: Probe | None = None
    ) -> dict[str, Tensor]:
        """Return the outputs of the heads by name.

        x: the output of the encoder, (B, S, D), or of the decoder, (B, T, D). valid: bool (B, S) or (B, T), True for
        real tokens. token_table: see ``MaskedLM``.
        """
        outputs: dict[str, Tensor] = {}
        if hasattr(self, "logits"):
            scores = self.logits(x)
            scores = torch.where(valid[:, :, None], scores, 0.0)
            outputs["logits"] = observe(probe, "logits", scores)
        if hasattr(self, "log_probabilities"):
            scores = log_softmax(self.log_probabilities(x))
            scores = torch.where(valid[:, :, None], scores, 0.0)
            outputs["log_probabilities"] = observe(probe, "log_probabilities", scores)
        if hasattr(self, "pooler"):
            outputs["pooler"] = observe(probe, "pooler", torch.tanh(self.pooler(x[:, 0])))
        if hasattr(self, "masked_lm"):
            scores = self.masked_lm(x, valid, token_table, probe=under(probe, "masked_lm"))
            outputs["masked_lm"] = observe(probe, "masked_lm", scores)
        if hasattr(self, "next_sentence"):
            outputs["next_sentence"] = observe(probe, "next_sentence", self.next_sentence(outputs["pooler"]))
        return outputs
