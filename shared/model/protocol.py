"""What every implementation offers. The harness knows models only by this."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from triglot.shared.arrays import Array, Bools
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.inputs import Batch
from triglot.shared.training.plan import Moments, Outcome, Plan

from .config import ModelConfig


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

    def generate(self, source_ids: Any, max_length: int | None = None, cached: bool = True) -> Array:
        """Target ids, int32 (B, T), greedy: the start id, the likeliest token each time, the pad id after the end id.

        ``source_ids``: integers (B, S), padded with the pad id. ``max_length`` T; None: the maximum of the model.
        ``cached``: keys and values of earlier tokens are kept; False: computed anew for each token, as in article 000.

        Raises:
            InputError: an input does not fit the model, or it has no decoder, or no start, end or pad id.
        """
        ...

    def attend(
        self,
        query: Any,
        key: Any,
        value: Any,
        allowed: Any = None,
        key_valid: Any = None,
        bias: Any = None,
        batch_first: bool = True,
    ) -> tuple[Array, Array]:
        """The output of a model that is attention alone, (B, T, D), and its weights, averaged over heads, (B, T, S).

        ``query`` (B, T, D); ``key``, ``value`` (B, S, D): float; with ``batch_first`` False they, and the output, have
        the length first (article 004). ``key_valid``: bool (B, S), True for real keys. ``allowed``: bool, True = may
        attend, and ``bias``: float, added to the scores, where minus infinity forbids: (T, S), (B * H, T, S) or
        (B, H, T, S), where B and H may be 1. None: all may be attended to, and nothing is added.

        Raises:
            InputError: an input does not fit the model, or it is more than attention.
        """
        ...

    def loss_and_gradients(
        self, batch: Batch, dropout_masks: Mapping[str, Array] | None = None
    ) -> tuple[float, dict[str, Array]]:
        """The loss of a batch, and its gradients by name.

        Of an encoder-decoder the cross-entropy, the mean over the labels that count; see ``inputs.teacher_forcing``. Of
        an encoder the mean squared distance to what a teacher gives, over real tokens; see ``inputs.taught``. In mode
        "compiled", computed as in "eager". ``dropout_masks``: what is dropped (``dropouts.py``); None: nothing.

        Raises:
            InputError: the batch does not fit the model, or has no labels, or no teacher.
            TrainingError: the model has no loss.
        """
        ...

    def begin_training(self, plan: Plan, moments: Moments | None = None) -> None:
        """Make ready for ``training_step``; ``moments`` are those of an earlier training that is to go on.

        Raises:
            TrainingError: the model has no loss.
            FrameworkError: the reference has no gradients.
        """
        ...

    def training_step(self, batch: Batch, dropout_masks: Mapping[str, Array] | None = None) -> Outcome:
        """Change the weights by one step of Adam on a batch. Arguments as in ``loss_and_gradients``.

        Raises:
            InputError: the batch does not fit the model, or has no labels, or no teacher.
            TrainingError: no training has begun.
        """
        ...

    def moments(self) -> Moments:
        """What Adam remembers of the training that has begun.

        Raises:
            TrainingError: none has.
        """
        ...

    def masks(self, valid: Bools) -> dict[str, Bools]:
        """The masks that the framework builds from ``valid``, bool (B, S), as in ``shared/masks.py``.

        Raises:
            InputError: ``valid`` is something else.
        """
        ...

    def trace(self, batch: Batch, replacements: Mapping[str, Array] | None = None) -> dict[str, Array]:
        """Every named value of a forward pass; ``replacements`` are handed on in place of what was computed."""
        ...

    def prepare(self, workload: str, batch: Batch) -> Callable[[], Any]:
        """A call that computes, for timing; its result stays in the framework, which ``wait`` waits for.

        ``workload``: "forward" (output and heads); "forward+backward" (the loss, and its gradients by the framework's
        names); "training" (a step of the training that has begun: its ``Outcome``); or "generation" (a target of the
        greatest length, with kept keys and values). Nothing is dropped. The batch is handed over beforehand; it has to
        fit the model.

        Raises:
            TrainingError: no training has begun.
        """
        ...

    def wait(self, result: Any) -> None:
        """Wait until what ``prepare``'s call returned is computed: JAX, and every GPU, works on after the call."""
        ...

    def to_numpy(self, tensor: Any) -> Array:
        """A tensor that ``prepare``'s call returned."""
        ...

    def to_canonical(self, tensors: Mapping[str, Any]) -> dict[str, Array]:
        """One tensor for each parameter, gradients, say, by canonical name and in canonical layout."""
        ...

    def weights(self) -> dict[str, Array]:
        """The weights by canonical name, read back from the framework."""
        ...


class Builder(Protocol):
    """How a model is made: the class ``Model`` of every implementation."""

    def __call__(
        self, checkpoint: Checkpoint, *, device: str = "cpu", dtype: str | None = None, mode: str = "eager"
    ) -> Model:
        """Build the model of ``checkpoint``."""
        ...


class Reference(Protocol):
    """The reference implementation as the harness uses it: a truth, and the rounding noise around it."""

    def truth(self, batch: Batch, replacements: Mapping[str, Array]) -> dict[str, Array]:
        """Every named value in float64."""
        ...

    def rounded(self, batch: Batch, replacements: Mapping[str, Array], *, seed: int, dtype: str) -> dict[str, Array]:
        """Every named value in float32, with every sum in an order that ``seed`` decides.

        For a ``dtype`` of 16 bits, every named value is rounded to it before the computation goes on.
        """
        ...
