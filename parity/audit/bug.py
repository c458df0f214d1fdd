"""A bug: what a person might get wrong in one place, as a change of source text in each framework."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from triglot.shared.arrays import Array
from triglot.shared.model.config import DenseLayer, ModelConfig
from triglot.shared.model.recipes import recipe

POST_NORM, PRE_NORM, TASKS = "bert-base-tiny", "dygraph-tiny", "ernie-base-tiny"
TRANSLATION, ANNOTATED, PRENORM, ATTENTION = "translation-tiny", "annotated-tiny", "prenorm-tiny", "multihead-tiny"
LONG = replace(recipe(POST_NORM), source_max_length=64)  # a single row is tried with padding only in a long model
PRE_TRAINING = replace(recipe(POST_NORM), heads_on_top=("pooler", "masked_lm", "next_sentence"), tied_embeddings=True)
CLASSIFIER = replace(
    recipe(POST_NORM),
    position_offset=2,
    positions_skip_padding=True,
    heads_on_top=("pooler", "sequence_classifier", "token_classifier"),
    pooler_activation="relu",
    classes=5,
)
VECTORS = replace(
    recipe(TRANSLATION),
    **{"source_vocabulary": 0, "target_vocabulary": 0, "positions": "none", "heads_on_top": ()},
    **{"pad_id": None, "start_id": None, "end_id": None, "normalize_memory": False},
    **{"pre_process": "", "post_process": "an"},
)
WITHOUT_BIASES = replace(
    recipe(PRE_NORM),
    projection_bias=False,
    output_bias=False,
    feed_forward_bias=False,
    norm_bias=False,
    final_norm_bias=False,
)
DISCRIMINATOR = replace(recipe(POST_NORM), embedding_size=16, heads_on_top=("replaced_token",))
_SQUARE = recipe(POST_NORM).hidden_size  # layers that may be left out or exchanged
EMBEDDING = replace(
    recipe(POST_NORM),
    heads_on_top=("sentence_embedding",),
    sentence_pooling="mean",
    sentence_layers=(
        DenseLayer(size=_SQUARE, bias=True, activation="tanh"),
        DenseLayer(size=_SQUARE, bias=True, activation="none"),
    ),
    sentence_normalized=True,
)
POOLED_FIRST = replace(EMBEDDING, sentence_pooling="cls")
POOLED_MAX = replace(EMBEDDING, sentence_pooling="max", sentence_layers=())

FORWARD_CHECKS = ("masks", "steps", "forward")


@dataclass(frozen=True)
class Bug:
    """A change of source text per framework, the file that it changes, and the value that the check has to name.

    Outside the forward pass, ``found_at`` is how the name of that value begins.

    ``recipe``: the model in which the bug has an effect. ``weights``: tensors that replace the random ones. Their huge
    entries would hide the bug if a whole value shared one budget. ``checks``: the kinds of check to run.
    """

    found_at: str
    file: str
    torch: Mapping[str, str]
    paddle: Mapping[str, str]
    jax: Mapping[str, str]
    recipe: str | ModelConfig = POST_NORM
    weights: Mapping[str, Array] = field(default_factory=dict[str, Array])
    checks: Sequence[str] = FORWARD_CHECKS

    @property
    def config(self) -> ModelConfig:
        """The configuration of the model in which the bug has an effect."""
        return recipe(self.recipe) if isinstance(self.recipe, str) else self.recipe

    @property
    def in_forward_pass(self) -> bool:
        """Whether the named values of a forward pass show the bug."""
        return self.checks == FORWARD_CHECKS

    def change(self, framework: str) -> Mapping[str, str]:
        """Return the change of source text in ``framework``: what is there, and what replaces it."""
        return {"torch": self.torch, "paddle": self.paddle, "jax": self.jax}[framework]


def everywhere(
    found_at: str,
    file: str,
    change: Mapping[str, str],
    recipe: str | ModelConfig = POST_NORM,
    checks: Sequence[str] = FORWARD_CHECKS,
) -> Bug:
    """Return a bug with the same change in all frameworks."""
    return Bug(found_at, file, change, change, change, recipe, checks=checks)


def loading(found_at: str, array: str) -> Bug:
    """Return a bug that loads another array in place of ``arrays[name]``."""
    torch, paddle, jax = ({f"np2{name}(arrays[name]": f"np2{name}({array}"} for name in ("torch", "paddle", "jax"))
    return Bug(found_at, "weights.py", torch, paddle, jax)
