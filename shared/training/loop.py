"""The loop of training: batches of the translation task in, weights and moments out; of no framework.

Step k of a seed sees the same samples and drops out the same numbers, whatever framework makes it and whether or not
the training was stopped before: so it goes on exactly where it was, in the same framework or in another one.
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

# Samples from here on are for judging: no training comes this far.
UNSEEN = 1 << 40

OnStep = Callable[[int, float, Outcome], bool]  # steps done, rate, what the step saw -> whether to go on


class TrainableModel(Protocol):
    """What the loop needs of a model; ``impls/model.py`` documents the methods."""

    config: ModelConfig

    def begin_training(self, plan: Plan, moments: Moments | None = None) -> None: ...  # noqa: D102
    def training_step(self, batch: Batch, dropout_masks: Mapping[str, Array] | None = None) -> Outcome: ...  # noqa: D102
    def moments(self) -> Moments: ...  # noqa: D102
    def weights(self) -> dict[str, Array]: ...  # noqa: D102
    def generate(self, source_ids: Any, max_length: int | None = None, cached: bool = True) -> Array: ...  # noqa: D102


class Learner:
    """A model in training on the translation task of article 000.

    Goes on where ``checkpoint.training`` stopped, if it has one; its plan has to be ``plan`` then.

    Raises:
        TaskError: the model cannot learn the task.
        TrainingError: the model has no loss, or the plan is another one.
        FrameworkError: the model is the reference, which does not train.
    """

    def __init__(self, model: TrainableModel, checkpoint: Checkpoint, plan: Plan) -> None:
        kept = checkpoint.training
        if kept is not None and kept.plan != plan:
            ours, theirs = plan.to_dict(), kept.plan.to_dict()
            wrong = ", ".join(f"{name} {theirs[name]}, not {ours[name]}" for name in ours if ours[name] != theirs[name])
            raise TrainingError(f"the training that is to go on has {wrong}; leave the plan as it is, or begin anew")
        self.model = model
        self.plan = plan
        self.task = TranslationTask.for_model(model.config, plan.seed)
        self.source_names = checkpoint.source_names
        self.losses = list(kept.history.loss) if kept else []
        self.accuracies = list(kept.history.accuracy) if kept else []
        model.begin_training(plan, kept.moments if kept else None)

    @property
    def steps(self) -> int:
        """How many steps have been made."""
        return len(self.losses)

    def learn(self, until: int, on_step: OnStep | None = None) -> None:
        """Make steps up to number ``until``; ``on_step`` is called after each and says whether to go on.

        Raises:
            TrainingError: a loss is not finite; the weights are not to be kept then.
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
                    f"the loss of step {self.steps + 1} is {outcome.loss}; lower the rate, and go on from the last "
                    "checkpoint, or begin anew"
                )
            self.losses.append(outcome.loss)
            self.accuracies.append(outcome.right / outcome.counted)
            if on_step is not None and not on_step(self.steps, rate, outcome):
                return

    def batch(self, step: int) -> Batch:
        """What step number ``step``, counted from 0, sees."""
        sources, targets = self.task.pairs(step * self.plan.batch_size, self.plan.batch_size)
        return teacher_forcing(self.model.config, sources, targets)

    def checkpoint(self) -> Checkpoint:
        """The weights as they are now, and what is needed to go on."""
        history = History(np.array(self.losses, np.float32), np.array(self.accuracies, np.float32))
        training = Training(self.plan, self.model.moments(), history)
        return Checkpoint(self.model.config, self.model.weights(), self.source_names, training)


def judge(model: TrainableModel, seed: int, count: int = 256) -> Score:
    """How well ``model`` translates ``count`` sentences that no training has seen, by greedy decoding.

    Raises:
        TaskError: the model cannot have learnt the task.
    """
    task = TranslationTask.for_model(model.config, seed)
    sources, targets = task.pairs(UNSEEN, count)
    return score(model.generate(sources, max_length=task.length), targets[:, : task.length])
