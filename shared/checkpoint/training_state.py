"""The training state in a checkpoint: which members hold it, and which shapes and dtypes they must have."""

from collections.abc import Iterator, Mapping

import numpy as np

from triglot.shared.arrays import Array
from triglot.shared.errors import TrainingError
from triglot.shared.inputs import check_trainable
from triglot.shared.model import schema
from triglot.shared.model.config import ModelConfig
from triglot.shared.model.schema import Parameter
from triglot.shared.training.plan import History, Moments, Plan, Training

from .checksums import PrefixedTensors

DTYPES = ("float32", "float64")  # the formats that training runs in

PREFIX = "training."
FIRST, SECOND = f"{PREFIX}first_moment.", f"{PREFIX}second_moment."
LOSS, ACCURACY = f"{PREFIX}loss", f"{PREFIX}accuracy"


def arrays(training: Training) -> dict[str, Array]:
    """Return the arrays that are stored beside the weights, by member name."""
    return {
        **{FIRST + name: tensor for name, tensor in training.moments.first.items()},
        **{SECOND + name: tensor for name, tensor in training.moments.second.items()},
        LOSS: training.history.loss,
        ACCURACY: training.history.accuracy,
    }


def restore(plan: Plan, steps: int, members: Mapping[str, Array]) -> Training:
    """Return the training run whose ``arrays`` are ``members``. The history is read now, the moments when used."""
    moments = Moments(steps, PrefixedTensors(members, FIRST), PrefixedTensors(members, SECOND))
    return Training(plan, moments, History(members[LOSS], members[ACCURACY]))


def problems(parameters: Mapping[str, Parameter], steps: object, members: Mapping[str, Array]) -> Iterator[str]:
    """Yield what is wrong with the members of a training run of ``steps`` steps: names, shapes and dtypes."""
    if type(steps) is not int or steps < 0:
        yield f"steps is {steps!r}, expected a whole number, 0 or more"
    expected: dict[str, tuple[object, ...]] = {LOSS: (steps,), ACCURACY: (steps,)}
    expected |= {prefix + name: entry.shape for prefix in (FIRST, SECOND) for name, entry in parameters.items()}
    for name in expected.keys() - members.keys():
        yield f"missing {name}"
    for name, array in members.items():
        if name not in expected:
            yield f"unexpected {name}"
        elif not isinstance(array, np.ndarray):  # pyright: ignore[reportUnnecessaryIsInstance]
            yield f"{name} is a {type(array).__name__}, expected a NumPy array"
        elif array.shape != expected[name]:
            yield f"{name} has shape {array.shape}, expected {expected[name]}"
        elif array.dtype.name not in DTYPES:
            yield f"{name} has dtype {array.dtype}, expected {' or '.join(DTYPES)}"


def check_beginning(config: ModelConfig, dtype: str, mode: str, moments: Moments | None) -> None:
    """Refuse a training run that cannot start or resume.

    Raises:
        TrainingError: the model has no loss, ``dtype`` is too coarse for Adam's small steps, ``mode`` compiles the
            weights in, or ``moments`` belong to another model.
    """
    check_trainable(config)
    if mode == "compiled":
        raise TrainingError("mode 'compiled' cannot train, because the weights are compiled in; use 'eager' or 'jit'")
    if dtype not in DTYPES:
        raise TrainingError(f"dtype of a training run is {dtype!r}; expected one of {', '.join(DTYPES)}")
    if moments is None:
        return
    history = np.zeros(moments.steps, np.float32)
    members = arrays(Training(Plan(), moments, History(history, history)))
    if wrong := sorted(problems(schema.parameters(config), moments.steps, members)):
        raise TrainingError(
            f"the moments do not match the model: {'; '.join(wrong)}; pass the moments saved with this model"
        )
