"""The members of a checkpoint file that keep a training, and what its manifest says of them; see ``checkpoint.py``."""

from collections.abc import Iterator, Mapping
from typing import Any, cast

import numpy as np

from .arrays import Array
from .errors import TrainingError
from .schema import Parameter
from .training import History, Moments, Plan, Training

PREFIX = "training."
FIRST, SECOND = f"{PREFIX}first_moment.", f"{PREFIX}second_moment."
LOSS, ACCURACY = f"{PREFIX}loss", f"{PREFIX}accuracy"

_FIELDS = {"plan", "steps"}


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


def training_of(
    stated: Mapping[str, Any], found: Mapping[str, Array], shapes: Mapping[str, tuple[int, ...]]
) -> Training:
    """The inverse. ``shapes`` are those of the arrays ``found``, which are not read here.

    Raises:
        TrainingError: a part is missing, or is none of a training.
    """
    if set(stated) != _FIELDS or not isinstance(stated["plan"], dict):
        raise TrainingError("what it says of its training has other fields")
    steps, fields = stated["steps"], cast("dict[str, Any]", stated["plan"])
    if type(steps) is not int or steps < 0 or any(shapes.get(name) != (steps,) for name in (LOSS, ACCURACY)):
        raise TrainingError("the steps of its training are not those of its history")
    plan = Plan.from_dict(fields)
    first, second = Part(found, FIRST), Part(found, SECOND)
    return Training(plan, Moments(steps, first, second), History(found[LOSS], found[ACCURACY]))


def problems(
    parameters: Mapping[str, Parameter], shapes: Mapping[str, tuple[int, ...]], dtypes: Mapping[str, np.dtype[Any]]
) -> Iterator[str]:
    """What is wrong with the members of a training: missing, unknown, misshapen or of another format."""
    expected = {prefix + name: entry.shape for prefix in (FIRST, SECOND) for name, entry in parameters.items()}
    for name in (expected.keys() | {LOSS, ACCURACY}) - shapes.keys():
        yield f"missing {name}"
    for name, shape in shapes.items():
        if name in expected:
            if shape != expected[name]:
                yield f"{name} has shape {shape}, expected {expected[name]}"
        elif name not in (LOSS, ACCURACY):
            yield f"unexpected {name}"
        if dtypes[name].name not in ("float32", "float64"):
            yield f"{name} has dtype {dtypes[name]}, expected float32 or float64"


class Part(Mapping[str, Array]):
    """The arrays whose names begin with a prefix, without it; each is read when it is asked for."""

    def __init__(self, found: Mapping[str, Array], prefix: str) -> None:
        self._found, self._prefix = found, prefix

    def __getitem__(self, name: str) -> Array:
        return self._found[self._prefix + name]

    def __iter__(self) -> Iterator[str]:
        return (name.removeprefix(self._prefix) for name in self._found if name.startswith(self._prefix))

    def __len__(self) -> int:
        return sum(1 for _ in self)
