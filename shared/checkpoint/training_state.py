"""The members of a checkpoint file that keep a training, and what its manifest says of them; see ``checkpoint.py``."""

from collections.abc import Iterator, Mapping
from typing import Any, cast

import numpy as np

from triglot.shared.arrays import Array
from triglot.shared.errors import TrainingError
from triglot.shared.inputs import check_trainable
from triglot.shared.model import schema
from triglot.shared.model.config import ModelConfig
from triglot.shared.model.schema import Parameter
from triglot.shared.training.plan import History, Moments, Plan, Training

DTYPES = ("float32", "float64")  # what a training runs in, and is kept in

PREFIX = "training."
FIRST, SECOND = f"{PREFIX}first_moment.", f"{PREFIX}second_moment."
LOSS, ACCURACY = f"{PREFIX}loss", f"{PREFIX}accuracy"


def arrays(training: Training) -> dict[str, Array]:
    """What is stored beside the weights, by member name."""
    return {
        **{FIRST + name: tensor for name, tensor in training.moments.first.items()},
        **{SECOND + name: tensor for name, tensor in training.moments.second.items()},
        LOSS: training.history.loss,
        ACCURACY: training.history.accuracy,
    }


def facts(training: Training) -> dict[str, Any]:
    """What is stored in the manifest, as plain JSON types."""
    return {"plan": training.plan.to_dict(), "steps": training.moments.steps}


def training_of(stated: Mapping[str, Any], found: Mapping[str, Array]) -> Training:
    """The inverse, of what has no ``problems``. The moments are not read yet.

    Raises:
        TrainingError: the plan is none.
    """
    if not isinstance(stated["plan"], dict):
        raise TrainingError("the plan of its training is no object")
    plan = Plan.from_dict(cast("dict[str, Any]", stated["plan"]))
    moments = Moments(stated["steps"], Part(found, FIRST), Part(found, SECOND))
    return Training(plan, moments, History(found[LOSS], found[ACCURACY]))


def problems(parameters: Mapping[str, Parameter], steps: object, kept: Mapping[str, Array]) -> Iterator[str]:
    """What is wrong with the members of a training of so many steps: missing, unknown, misshapen, of another format."""
    if type(steps) is not int or steps < 0:
        yield f"steps is {steps!r}, expected a whole number, 0 or more"
    expected: dict[str, tuple[object, ...]] = {LOSS: (steps,), ACCURACY: (steps,)}
    expected |= {prefix + name: entry.shape for prefix in (FIRST, SECOND) for name, entry in parameters.items()}
    for name in expected.keys() - kept.keys():
        yield f"missing {name}"
    for name, array in kept.items():
        if name not in expected:
            yield f"unexpected {name}"
        elif not isinstance(array, np.ndarray):  # pyright: ignore[reportUnnecessaryIsInstance]
            yield f"{name} is a {type(array).__name__}, expected a NumPy array"
        elif array.shape != expected[name]:
            yield f"{name} has shape {array.shape}, expected {expected[name]}"
        elif array.dtype.name not in DTYPES:
            yield f"{name} has dtype {array.dtype}, expected {' or '.join(DTYPES)}"


def check_beginning(config: ModelConfig, dtype: str, mode: str, moments: Moments | None) -> None:
    """Refuse a training that cannot begin, or go on.

    Raises:
        TrainingError: the model has no loss, ``dtype`` is too coarse for Adam's small steps, ``mode`` has the weights
            compiled in, or ``moments`` are those of another model.
    """
    check_trainable(config)
    if mode == "compiled":
        raise TrainingError("the weights of a model in mode 'compiled' are part of it; train in mode 'eager' or 'jit'")
    if dtype not in DTYPES:
        raise TrainingError(f"dtype of a training is {dtype!r}; expected one of {', '.join(DTYPES)}")
    if moments is None:
        return
    history = np.zeros(moments.steps, np.float32)
    kept = arrays(Training(Plan(), moments, History(history, history)))
    if wrong := sorted(problems(schema.parameters(config), moments.steps, kept)):
        raise TrainingError(f"the moments do not match the model: {'; '.join(wrong)}; give those of this model")


class Part(Mapping[str, Array]):
    """The arrays whose names begin with a prefix, without it; each is read when it is asked for."""

    def __init__(self, found: Mapping[str, Array], prefix: str) -> None:
        self.found, self.prefix = found, prefix

    def __getitem__(self, name: str) -> Array:
        return self.found[self.prefix + name]

    def __iter__(self) -> Iterator[str]:
        return (name.removeprefix(self.prefix) for name in self.found if name.startswith(self.prefix))

    def __len__(self) -> int:
        return sum(1 for _ in self)
