"""Heads: what turns the output of the encoder or of the decoder into predictions.

Shapes: B batch, S length, T target length, D hidden size, E size of an embedding, V vocabulary, C classes.
"""

from flax import nnx
from jax import Array
from jax import numpy as jnp

from triglot.shared.model.config import ModelConfig
from triglot.shared.model.probe import Probe, observe, under

from .feed_forward import ACTIVATIONS
from .masks import log_softmax
from .norms import NORMS
from .sentence_embedding import SentenceEmbedding

POOLER_ACTIVATIONS = {**ACTIVATIONS, "tanh": jnp.tanh}


class MaskedLM(nnx.Module):
    """Scores of every token of the vocabulary at every position (Devlin et al. 2018).

    With tied embeddings, the scores are products with the token embedding. Otherwise the head has a table of its own,
    the decoder.
    """

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        self.transform = nnx.Linear(config.hidden_size, config.embedding_width, rngs=rngs)
        self.activation = ACTIVATIONS[config.activation]
        self.norm = NORMS[config.norm](config, config.embedding_width, rngs=rngs)
        if not config.tied_embeddings:
            self.decoder = nnx.Embed(config.source_vocabulary, config.embedding_width, rngs=rngs)
        self.bias = nnx.Param(jnp.zeros(config.source_vocabulary))

    def __call__(self, x: Array, valid: Array, token_table: Array | None, probe: Probe | None = None) -> Array:
        """Return the scores, (B, S, V), zero at padding tokens.

        x: (B, S, D). valid: bool (B, S), True for real tokens. token_table: the token embedding, (V, E), if the
        embeddings are tied; else None.
        """
        x = observe(probe, "transform", self.transform(x))
        x = observe(probe, "activation", self.activation(x))
        x = observe(probe, "norm", self.norm(x))
        table = self.decoder.embedding[...] if token_table is None else token_table
        scores = x @ table.T + self.bias
        return jnp.where(valid[:, :, None], scores, 0.0)


class ReplacedToken(nnx.Module):
    """A score for each token, high if a generator replaced it (the discriminator of ELECTRA, Clark et al. 2020)."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        self.transform = nnx.Linear(config.hidden_size, config.hidden_size, rngs=rngs)
        self.activation = ACTIVATIONS[config.activation]
        self.output = nnx.Linear(config.hidden_size, 1, rngs=rngs)

    def __call__(self, x: Array, valid: Array, probe: Probe | None = None) -> Array:
        """Return the scores, (B, S), zero at padding tokens. x: (B, S, D). valid: bool (B, S), True for real tokens."""
        x = observe(probe, "transform", self.transform(x))
        x = observe(probe, "activation", self.activation(x))
        scores = self.output(x)[:, :, 0]
        return jnp.where(valid, scores, 0.0)


class Heads(nnx.Module):
    """The heads that the configuration names.

    On an encoder: "pooler", the first token through a linear layer and an activation, (B, D); "masked_lm", see
    ``MaskedLM``; "next_sentence", scores for a second segment that follows the first and for one that does not, (B, 2)
    (Devlin et al. 2018); "sequence_classifier", class scores from the pooler, (B, C); "token_classifier", class
    scores for each token, (B, S, C); "replaced_token", see ``ReplacedToken``; "sentence_embedding", one vector for each
    row, (B, E), see ``SentenceEmbedding``. On a decoder: "logits", scores of the target vocabulary for the next token,
    (B, T, V), or "log_probabilities", the log-softmax of such scores. Padding tokens have scores of zero.
    """

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        if "logits" in config.heads_on_top:
            self.logits = nnx.Linear(config.hidden_size, config.target_vocabulary, rngs=rngs)
        if "log_probabilities" in config.heads_on_top:
            self.log_probabilities = nnx.Linear(config.hidden_size, config.target_vocabulary, rngs=rngs)
        if "pooler" in config.heads_on_top:
            self.pooler = nnx.Linear(config.hidden_size, config.hidden_size, rngs=rngs)
            self.pooler_activation = POOLER_ACTIVATIONS[config.pooler_activation]
        if "masked_lm" in config.heads_on_top:
            self.masked_lm = MaskedLM(config, rngs=rngs)
        if "next_sentence" in config.heads_on_top:
            self.next_sentence = nnx.Linear(config.hidden_size, 2, rngs=rngs)
        if "sequence_classifier" in config.heads_on_top:
            self.sequence_classifier = nnx.Linear(config.hidden_size, config.classes, rngs=rngs)
        if "token_classifier" in config.heads_on_top:
            self.token_classifier = nnx.Linear(config.hidden_size, config.classes, rngs=rngs)
        if "replaced_token" in config.heads_on_top:
            self.replaced_token = ReplacedToken(config, rngs=rngs)
        if "sentence_embedding" in config.heads_on_top:
            self.sentence_embedding = SentenceEmbedding(config, rngs=rngs)

    def __call__(
        self, x: Array, valid: Array, token_table: Array | None, probe: Probe | None = None
    ) -> dict[str, Array]:
        """Return the outputs of the heads by name.

        x: the output of the encoder, (B, S, D), or of the decoder, (B, T, D). valid: bool (B, S) or (B, T), True for
        real tokens. token_table: see ``MaskedLM``.
        """
        outputs: dict[str, Array] = {}
        if hasattr(self, "logits"):
            scores = self.logits(x)
            scores = jnp.where(valid[:, :, None], scores, 0.0)
            outputs["logits"] = observe(probe, "logits", scores)
        if hasattr(self, "log_probabilities"):
            scores = log_softmax(self.log_probabilities(x))
            scores = jnp.where(valid[:, :, None], scores, 0.0)
            outputs["log_probabilities"] = observe(probe, "log_probabilities", scores)
        if hasattr(self, "pooler"):
            outputs["pooler"] = observe(probe, "pooler", self.pooler_activation(self.pooler(x[:, 0])))
        if hasattr(self, "masked_lm"):
            scores = self.masked_lm(x, valid, token_table, probe=under(probe, "masked_lm"))
            outputs["masked_lm"] = observe(probe, "masked_lm", scores)
        if hasattr(self, "next_sentence"):
            outputs["next_sentence"] = observe(probe, "next_sentence", self.next_sentence(outputs["pooler"]))
        if hasattr(self, "sequence_classifier"):
            scores = self.sequence_classifier(outputs["pooler"])
            outputs["sequence_classifier"] = observe(probe, "sequence_classifier", scores)
        if hasattr(self, "token_classifier"):
            scores = self.token_classifier(x)
            scores = jnp.where(valid[:, :, None], scores, 0.0)
            outputs["token_classifier"] = observe(probe, "token_classifier", scores)
        if hasattr(self, "replaced_token"):
            scores = self.replaced_token(x, valid, probe=under(probe, "replaced_token"))
            outputs["replaced_token"] = observe(probe, "replaced_token", scores)
        if hasattr(self, "sentence_embedding"):
            embedding = self.sentence_embedding(x, valid, probe=under(probe, "sentence_embedding"))
            outputs["sentence_embedding"] = observe(probe, "sentence_embedding", embedding)
        return outputs
