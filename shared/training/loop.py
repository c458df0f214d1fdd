"""The training loop: batches of the translation task in, weights and moments out. It belongs to no framework.

Step k of a seed sees the same samples and drops out the same numbers in every framework, whether or not the training
run was interrupted before. So a training run resumes exactly where it stopped, in the same framework or in another one.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from triglot.shared.arrays import Array
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.errors import TrainingError
from triglot.shared.inputs import Batch, teacher_forcing
from triglot.shared.model.config import ModelConfig

from .dropout_masks import draw_dropout_masks
from .plan import History, Moments, Outcome, Plan, Training
from .translation import Score, TranslationTask, score

# Samples from here on are for evaluation: no training run gets this far.
UNSEEN = 1 << 40

OnStep = Callable[[int, float, Outcome], bool]  # steps made, learning rate, outcome of the step -> continue?


class TrainableModel(Protocol):
    """The methods of a model that the loop calls; ``impls/model.py`` documents them."""

    config: ModelConfig

    def begin_training(self, plan: Plan, moments: Moments | None = None) -> None: ...  # noqa: D102
    def training_step(self, batch: Batch, dropout_masks: Mapping[str, Array] | None = None) -> Outcome: ...  # noqa: D102
    def moments(self) -> Moments: ...  # noqa: D102
    def weights(self) -> dict[str, Array]: ...  # noqa: D102
    def generate(self, source_ids: Any, max_length: int | None = None, cached: bool = True) -> Array: ...  # noqa: D102


class TrainingLoop:
    """The training of a model on the translation task of article 000.

    If the checkpoint holds a training run, the loop resumes it, and ``plan`` has to be its plan.

    Raises:
        TaskError: the model cannot learn the task.
        TrainingError: the model has no loss, or the plan differs from that of the resumed training run.
        FrameworkError: the model is the reference, which does not train.
    """

    def __init__(self, model: TrainableModel, checkpoint: Checkpoint, plan: Plan) -> None:
        earlier = checkpoint.training
        if earlier is not None and earlier.plan != plan:
            new, old = plan.to_dict(), earlier.plan.to_dict()
            changes = ", ".join(f"{name} {old[name]}, not {new[name]}" for name in new if new[name] != old[name])
            raise TrainingError(f"the training run to resume has {changes}; keep its plan, or start a new one")
        self.model = model
        self.plan = plan
        self.task = TranslationTask.for_model(model.config, plan.seed)
        self.source_names = checkpoint.source_names
        self.losses = list(earlier.history.loss) if earlier else []
        self.accuracies = list(earlier.history.accuracy) if earlier else []
        model.begin_training(plan, earlier.moments if earlier else None)

    @property
    def steps(self) -> int:
        """The number of steps made."""
        return len(self.losses)

    def run(self, until: int, on_step: OnStep | None = None) -> bool:
        """Make steps up to number ``until``. ``on_step`` is called after each and returns whether to continue.

        Return False if it stopped the training run.

        Raises:
            TrainingError: a loss is not finite. Discard the weights then.
        """
        while self.steps < until:
            rate = self.plan.rate_at(self.steps)
            batch = self.batch(self.steps)
            masks = None
            if self.plan.dropout:
                generator = np.random.default_rng([self.plan.seed, 1, self.steps])
                masks = draw_dropout_masks(self.model.config, batch, generator)
            outcome = self.model.training_step(batch, masks)
            if not math.isfinite(outcome.loss):
                raise TrainingError(
                    f"the loss of step {self.steps + 1} is {outcome.loss}; lower the rate, and resume from the last "
                    "checkpoint or start a new training run"
                )
            self.losses.append(outcome.loss)
            self.accuracies.append(outcome.right / outcome.counted)
            if on_step is not None and not on_step(self.steps, rate, outcome):
                return False
        return True

    def batch(self, step: int) -> Batch:
        """Return the batch of step number ``step``, counted from 0."""
        sources, targets = self.task.pairs(step * self.plan.batch_size, self.plan.batch_size)
        return teacher_forcing(self.model.config, sources, targets)

    def checkpoint(self) -> Checkpoint:
        """Return the current weights and everything that is needed to resume."""
        history = History(np.array(self.losses, np.float32), np.array(self.accuracies, np.float32))
        training = Training(self.plan, self.model.moments(), history)
        return Checkpoint(self.model.config, self.model.weights(), self.source_names, training)


def evaluate(model: TrainableModel, seed: int, count: int = 256) -> Score:
    """Return how well ``model`` translates ``count`` sentences that no training run has seen, by greedy decoding.

    Raises:
        TaskError: the model cannot have learned the task.
    """
    task = TranslationTask.for_model(model.config, seed)
    sources, targets = task.pairs(UNSEEN, count)
    return score(model.generate(sources, max_length=task.length), targets[:, : task.length])
