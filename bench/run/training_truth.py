"""What an arm that trains has to compute before it is timed: the loss, its gradients, and the weights after a step."""

import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from triglot import impls
from triglot.impls.numpy_reference import training as reference
from triglot.impls.numpy_reference.model import Model as Reference
from triglot.parity.budgets import rounding_of_first_step
from triglot.parity.gradients import GRADIENTS, LOSS, NoiseError, Truth, disagreement, truth
from triglot.parity.outputs import Parity, worst
from triglot.shared import checkpoint as checkpoints
from triglot.shared.arrays import Array
from triglot.shared.checkpoint import Checkpoint, npz
from triglot.shared.errors import FrameworkError
from triglot.shared.inputs.validation import Batch
from triglot.shared.training.plan import EPSILON
from triglot.shared.worker import Worker, WorkerError

from .cases import Cell
from .training_step import PLAN, WEIGHTS
from .workloads import first_rows

CHECKED_TOKENS = 128  # of the batch on which gradients are compared with the reference, which takes its time
COMMAND = (sys.executable, "-P", "-m", "triglot.parity.worker")


class TrainingExpectation:
    """The truth of a cell that trains. The gradients come from a framework, which the reference has confirmed.

    Raises:
        FrameworkError: there is no framework, or none whose float64 gradients the reference confirms.
    """

    def __init__(self, checkpoint: Checkpoint, cell: Cell, batch: Batch, folder: Path, time_limit: float) -> None:
        self._dtype = cell.dtype
        self._weights = checkpoint.tensors
        self._steps = cell.workload == "training"
        failures: list[str] = []
        for framework in impls.installed():
            try:
                with _Derivation(framework, folder, cell.threads, time_limit) as derivation:
                    derivation.confirm(checkpoint, first_rows(batch, CHECKED_TOKENS))
                    self._truth: Truth = truth(checkpoint, batch, derivation.derive)
                    return
            except (WorkerError, NoiseError) as error:
                failures.append(f"{framework}: {error}")
        reasons = "; ".join(failures) or "no framework is installed; install PyTorch"
        raise FrameworkError(f"nobody says what the gradients are: {reasons}")

    def judge(self, outputs: Mapping[str, Array]) -> Parity:
        """The worst of ``outputs`` by the share of its budget that it uses up."""
        expected = {*self._truth.values, *(WEIGHTS + name for name in self._weights if self._steps)}
        if wrong := sorted(expected ^ outputs.keys()):
            return Parity(None, None, "diverged", wrong[0])
        return worst(
            {
                name: self._moved(name, value) if name.startswith(WEIGHTS) else self._computed(name, value)
                for name, value in outputs.items()
            }
        )

    def _computed(self, name: str, value: Array) -> tuple[float, float] | None:
        """The error of a loss or a gradient, and its budget."""
        if name not in self._truth.values or value.shape != self._truth.values[name].shape:
            return None
        error = np.abs(np.asarray(value, np.float64) - self._truth.values[name]).max(initial=0.0)
        return float(error), self._truth.budget(name, self._dtype)

    def _moved(self, name: str, value: Array) -> tuple[float, float] | None:
        """How far a weight is from where the first step of Adam may take it, and what rounding may add to that.

        The step is as long as the rate, whatever the size of a gradient, so a gradient of the size of its error may go
        either way. But it grows with the gradient: what the budget of the gradient allows is an interval.
        """
        name = name.removeprefix(WEIGHTS)
        if name not in self._weights or value.shape != self._weights[name].shape:
            return None
        gradient, budget = self._truth.values[GRADIENTS + name], self._truth.budget(GRADIENTS + name, self._dtype)
        before, rate = self._weights[name].astype(np.float64), PLAN.rate
        least, most = (before - rate * _step(gradient + side * budget) for side in (1, -1))
        beyond = np.maximum(np.maximum(value - most, least - value), 0.0)
        largest = float(np.abs(before).max(initial=0.0))
        return float(beyond.max(initial=0.0)), rounding_of_first_step(rate, largest, self._dtype)


def _wide(array: Array) -> Array:
    return array.astype(np.float64) if array.dtype.kind == "f" else array


def _step(gradient: Array) -> Array:
    """How many rates long the first step of Adam is."""
    return gradient / (np.abs(gradient) + EPSILON)


class _Derivation:
    """A worker of the parity harness that derives the loss."""

    def __init__(self, framework: str, folder: Path, threads: int, time_limit: float) -> None:
        self._folder = folder
        self._worker = Worker(COMMAND, folder / f"derivation-{framework}.log", threads, time_limit)
        self._worker.send({"framework": framework, "device": "cpu", "dtype": "float64", "mode": "eager"})
        self._number = 0

    def __enter__(self) -> "_Derivation":
        self._worker.receive()
        return self

    def __exit__(self, *_: object) -> None:
        self._worker.close()

    def derive(
        self, checkpoint: Checkpoint, batch: Batch, masks: Mapping[str, Array], dtype: str
    ) -> tuple[float, Mapping[str, Array]]:
        """Loss and gradients."""
        self._number += 1
        names = ("checkpoint", "batch", "masks", "results")
        paths = {name: self._folder / f"derivation-{self._number}-{name}.npz" for name in names}
        checkpoints.save(checkpoint, paths["checkpoint"])
        npz.write(paths["batch"], batch.arrays())
        npz.write(paths["masks"], masks)
        self._worker.send({"dtype": dtype, **{name: str(path) for name, path in paths.items()}})
        self._worker.receive()
        found = npz.read(paths["results"])
        for path in paths.values():
            path.unlink()
        loss = float(found.pop(LOSS))
        return loss, {name.removeprefix(GRADIENTS): value for name, value in found.items()}

    def confirm(self, checkpoint: Checkpoint, batch: Batch) -> None:
        """Compare with the derivatives of the reference.

        Raises:
            WorkerError: they differ.
        """
        oracle = Reference(checkpoint, dtype="float64")
        given = {name: _wide(array) for name, array in batch.arrays().items()}
        loss, gradients = self.derive(checkpoint, batch, {}, "float64")
        exact = float(reference.loss(oracle.transformer, given, {})[0])
        found = disagreement(
            loss,
            gradients,
            exact,
            lambda direction: reference.derivative(oracle.transformer, given, {}, direction),
        )
        if not found <= 1:
            raise WorkerError(f"its float64 gradients are {found:.3g} times off from the reference", fatal=True)
