"""The records of a training run, of no framework: its plan, the outcome of a step, and the state to resume."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from triglot.shared.arrays import Array, Float32s
from triglot.shared.errors import TrainingError

# Adam's (Kingma and Ba 2015), written out although they are the defaults of all three frameworks.
BETAS = (0.9, 0.999)
EPSILON = 1e-8


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How to train: Adam with the learning rate ``rate``, multiplied by ``decay`` every ``epochs_per_decay`` epochs.

    An epoch is ``samples_per_epoch`` samples in batches of ``batch_size``. ``dropout`` False: ignore the dropout rates
    of the model. ``seed`` decides the samples and what is dropped. Both apply to ``triglot.train``; ``training_step``
    drops only what its ``dropout_masks`` say. The defaults are those of article 000, except for
    ``samples_per_epoch``: with its 1,000 samples the rate is halved every 375 steps, and training never converges.

    Raises:
        TrainingError: a value is impossible; the message has the field, its value and what is accepted.
    """

    rate: float = 2e-3
    decay: float = 0.5
    epochs_per_decay: int = 3
    samples_per_epoch: int = 16_000
    batch_size: int = 8
    dropout: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("epochs_per_decay", 1), ("samples_per_epoch", 1), ("batch_size", 1), ("seed", 0)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise TrainingError(
                    f"{name} of the training run is {value!r}; expected a whole number of {least} or more"
                )
        if self.samples_per_epoch < self.batch_size:
            raise TrainingError(
                f"samples_per_epoch of the training run is {self.samples_per_epoch}; expected at least one batch of "
                f"{self.batch_size}"
            )
        for name in ("rate", "decay"):
            value = getattr(self, name)
            if type(value) not in (float, int) or not 0 < value <= 1:
                raise TrainingError(f"{name} of the training run is {value!r}; expected a number above 0, at most 1")
            object.__setattr__(self, name, float(value))  # 1 and 1.0 are the same plan
        if type(self.dropout) is not bool:
            raise TrainingError(f"dropout of the training run is {self.dropout!r}; expected true or false")

    @property
    def steps_per_epoch(self) -> int:
        """The number of whole batches in an epoch."""
        return self.samples_per_epoch // self.batch_size

    @property
    def decay_steps(self) -> int:
        """The number of steps between decays of the rate."""
        return self.epochs_per_decay * self.steps_per_epoch

    def rate_at(self, step: int) -> float:
        """Return the learning rate of step number ``step``, counted from 0."""
        return self.rate * self.share_at(step)

    def share_at(self, step: int) -> float:
        """Return the share of the initial rate that is left at step number ``step``, counted from 0."""
        return self.decay ** (step // self.decay_steps)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain JSON types."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Plan:
        """Return the plan that ``to_dict`` described.

        Raises:
            TrainingError: a field is unknown, missing or wrong.
        """
        expected = {field.name for field in dataclasses.fields(cls)}
        if set(fields) != expected:
            wrong = ", ".join(sorted(set(fields) ^ expected))
            raise TrainingError(f"the plan of a training run: expected {', '.join(sorted(expected))}; wrong: {wrong}")
        return cls(**fields)


@dataclass(frozen=True)
class Moments:
    """The state of Adam: the first and second moment of each gradient, by canonical name and in canonical layout.

    ``steps``: the number of steps made.
    """

    steps: int
    first: Mapping[str, Array]
    second: Mapping[str, Array]


@dataclass(frozen=True)
class Outcome:
    """The outcome of a training step, before it changed the weights.

    ``loss``: the mean over the ``counted`` labels; ``right`` of them were predicted. An encoder has no labels, so both
    counts are 0, and its loss is a mean over real tokens.
    """

    loss: float
    right: int
    counted: int


@dataclass(frozen=True)
class History:
    """The loss and accuracy of every step, float32 (steps,) each."""

    loss: Float32s = field(default_factory=lambda: np.zeros(0, np.float32))
    accuracy: Float32s = field(default_factory=lambda: np.zeros(0, np.float32))


@dataclass(frozen=True)
class Training:
    """What a checkpoint holds besides its weights, so that any framework can resume exactly where another stopped."""

    plan: Plan
    moments: Moments
    history: History
