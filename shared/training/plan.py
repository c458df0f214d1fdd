"""What training needs that belongs to no framework: the plan, what a step reports, and what has to be kept to go on."""

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
    """How to train: Adam at ``rate``, multiplied by ``decay`` every ``epochs_per_decay`` epochs (StepLR).

    An epoch is ``samples_per_epoch`` samples in batches of ``batch_size``. ``dropout`` False: the rates of the model
    are ignored. ``seed`` decides which samples come and what is dropped. The defaults are article 000's, but for the
    samples of an epoch: with its 1,000 the rate is halved every 375 steps, and training never converges.

    Raises:
        TrainingError: a value is impossible; names it, what it is and what is accepted.
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
                raise TrainingError(f"{name} of the training is {value!r}; expected a whole number of {least} or more")
        if self.samples_per_epoch < self.batch_size:
            raise TrainingError(
                f"samples_per_epoch of the training is {self.samples_per_epoch}; expected at least one batch of "
                f"{self.batch_size}"
            )
        for name in ("rate", "decay"):
            value = getattr(self, name)
            if type(value) not in (float, int) or not 0 < value <= 1:
                raise TrainingError(f"{name} of the training is {value!r}; expected a number above 0, at most 1")
            object.__setattr__(self, name, float(value))  # 1 and 1.0 are the same plan
        if type(self.dropout) is not bool:
            raise TrainingError(f"dropout of the training is {self.dropout!r}; expected true or false")

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches in an epoch."""
        return self.samples_per_epoch // self.batch_size

    @property
    def decay_steps(self) -> int:
        """Steps after which the rate falls."""
        return self.epochs_per_decay * self.steps_per_epoch

    def rate_at(self, step: int) -> float:
        """The rate of step number ``step``, counted from 0."""
        return self.rate * self.share_at(step)

    def share_at(self, step: int) -> float:
        """What is left of the first rate at step number ``step``, counted from 0."""
        return self.decay ** (step // self.decay_steps)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Plan:
        """The inverse of ``to_dict``.

        Raises:
            TrainingError: a field is unknown, missing or wrong.
        """
        known = {field.name for field in dataclasses.fields(cls)}
        if set(fields) != known:
            wrong = ", ".join(sorted(set(fields) ^ known))
            raise TrainingError(f"the plan of a training has other fields than {', '.join(sorted(known))}: {wrong}")
        return cls(**fields)


@dataclass(frozen=True)
class Moments:
    """What Adam remembers, by canonical name and in canonical layout: the first and second moment of each gradient.

    ``steps``: how many steps it has made.
    """

    steps: int
    first: Mapping[str, Array]
    second: Mapping[str, Array]


@dataclass(frozen=True)
class Outcome:
    """What a step of training saw, before it changed the weights.

    ``loss``: the mean over the labels that count, of which there are ``counted``; ``right`` of them were foreseen. An
    encoder has no labels, so both are 0; its loss is a mean over real tokens.
    """

    loss: float
    right: int
    counted: int


@dataclass(frozen=True)
class History:
    """Loss and accuracy of every step so far, float32 (steps,) each."""

    loss: Float32s = field(default_factory=lambda: np.zeros(0, np.float32))
    accuracy: Float32s = field(default_factory=lambda: np.zeros(0, np.float32))


@dataclass(frozen=True)
class Training:
    """All that a checkpoint keeps besides its weights, so that any framework can go on exactly where one stopped."""

    plan: Plan
    moments: Moments
    history: History
