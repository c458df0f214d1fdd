"""What every implementation offers. The harness knows models only by this."""

from collections.abc import Mapping
from typing import Any, Protocol

from .arrays import Array, Bools
from .checkpoint import Checkpoint
from .config import ModelConfig
from .inputs import Batch


class Model(Protocol):
    """A model in one framework, from a checkpoint. Takes and returns NumPy arrays.

    Shapes: B batch, S source length, D hidden size.
    """

    config: ModelConfig

    def encode(self, token_ids: Any, valid: Any = None, segment_ids: Any = None, task_ids: Any = None) -> Array:
        """The output of the last layer, (B, S, D), zero at padding tokens.

        ``token_ids``: integers (B, S), or vectors (B, S, D) for a model without a vocabulary. ``valid``: bool
        (B, S), True for real tokens; None: all are real. ``segment_ids``, ``task_ids``: integers (B, S); None: 0.

        Raises:
            InputError: an input does not fit the model.
        """
        ...

    def heads(
        self, token_ids: Any, valid: Any = None, segment_ids: Any = None, task_ids: Any = None
    ) -> dict[str, Array]:
        """The output of each head by name. Arguments as in ``encode``.

        "pooler": (B, D). "masked_lm": scores over the vocabulary, (B, S, V), zero at padding tokens.
        "next_sentence": (B, 2), the scores of "it follows" and of "it does not".
        """
        ...

    def forward(self, source_ids: Any, target_ids: Any, source_valid: Any = None, target_valid: Any = None) -> Array:
        """The scores of an encoder-decoder for the token after each target token, (B, T, target vocabulary).

        Logits or log-probabilities, as the configuration has it; zero at padding tokens. ``source_ids`` (B, S) and
        ``target_ids`` (B, T): integers. ``source_valid``, ``target_valid``: bool; None: all but the pad id is real.

        Raises:
            InputError: an input does not fit the model, or it has no decoder.
        """
        ...

    def masks(self, valid: Bools) -> dict[str, Bools]:
        """The masks that the framework builds from ``valid`` (B, S), as in ``shared/masks.py``."""
        ...

    def trace(self, batch: Batch, replacements: Mapping[str, Array] | None = None) -> dict[str, Array]:
        """Every named value of a forward pass; ``replacements`` are handed on in place of what was computed."""
        ...

    def weights(self) -> dict[str, Array]:
        """The weights by canonical name, read back from the framework."""
        ...


class Builder(Protocol):
    """How a model is made: the class ``Model`` of every implementation."""

    def __call__(self, checkpoint: Checkpoint, *, device: str = "cpu", dtype: str | None = None) -> Model:
        """Build the model of ``checkpoint``."""
        ...


class Reference(Protocol):
    """The reference implementation as the harness uses it: a truth, and the rounding noise around it."""

    def truth(self, batch: Batch, replacements: Mapping[str, Array]) -> dict[str, Array]:
        """Every named value in float64."""
        ...

    def rounded(self, batch: Batch, replacements: Mapping[str, Array], *, seed: int, dtype: str) -> dict[str, Array]:
        """Every named value in float32, with every sum in an order that ``seed`` decides.

        For the ``dtype`` "bfloat16", every named value is rounded to it before the computation goes on.
        """
        ...
