"""The truth of a training step: the loss, its gradients, and the weights after Adam's first step."""

import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import numpy as np

from triglot import impls
from triglot.shared import checkpoint as checkpoints
from triglot.shared.arrays import Array
from triglot.shared.checkpoint import Checkpoint, npz
from triglot.shared.errors import FrameworkError
from triglot.shared.inputs import Batch
from triglot.shared.training.plan import EPSILON
from triglot.shared.worker import Worker, WorkerError

from .budgets import rounding_of_first_step
from .gradients import GradientTruth, NoiseError, disagreement, gradient_truth, reference_loss
from .judge import diverged, judge_error
from .output_names import GRADIENTS, LOSS, WEIGHTS
from .pool import WORKER
from .report import Judgement, worst
from .truth import distance


class TrainingTruth:
    """The gradients of a batch, computed by the first installed framework whose gradients the reference confirms.

    ``confirmed_on`` is the smaller batch for that comparison, because the complex step is slow. ``rate`` is Adam's rate
    if the weights after its first step are judged as well, and None otherwise. ``folder`` holds temporary files.

    Raises:
        FrameworkError: no framework is installed, or the reference confirms none.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        batch: Batch,
        confirmed_on: Batch,
        dtype: str,
        *,
        rate: float | None,
        folder: Path,
        threads: int,
        time_limit: float,
    ) -> None:
        self._dtype = dtype
        self._rate = rate
        self._weights = checkpoint.tensors
        failures: list[str] = []
        for framework in impls.installed():
            try:
                with _Derivation(framework, folder, threads, time_limit) as derivation:
                    derivation.confirm(checkpoint, confirmed_on)
                    self._truth: GradientTruth = gradient_truth(checkpoint, batch, derivation.derive)
                    return
            except (WorkerError, NoiseError) as error:
                failures.append(f"{framework}: {error}")
        reasons = "; ".join(failures) or "no framework is installed"
        raise FrameworkError(f"the true gradients are unknown: {reasons}; repair or install one framework")

    def judge(self, outputs: Mapping[str, Array]) -> Judgement:
        """Return the worst judgement of ``outputs``; each expected one has to be there, and no other."""
        expected = {*self._truth.values, *(WEIGHTS + name for name in self._weights if self._rate is not None)}
        if unmatched := sorted(expected ^ outputs.keys()):
            return diverged(unmatched[0], "the value is " + ("missing" if unmatched[0] in expected else "unexpected"))
        return worst(
            self._judge_weight(name, value) if name.startswith(WEIGHTS) else self._judge_gradient(name, value)
            for name, value in outputs.items()
        )

    def _judge_gradient(self, name: str, value: Array) -> Judgement:
        true_value = self._truth.values[name]
        if value.shape != true_value.shape:
            return diverged(name, f"the shape is {value.shape}, expected {true_value.shape}")
        return judge_error(name, distance(value, true_value), self._truth.budget(name, self._dtype))

    def _judge_weight(self, name: str, value: Array) -> Judgement:
        """Judge how far a weight is from where Adam's first step may take it.

        The step is as long as the rate, whatever the size of the gradient, so a gradient no larger than its budget may
        go either way. But the step grows with the gradient, so the budget of the gradient gives an interval of weights.
        """
        assert self._rate is not None
        tensor = name.removeprefix(WEIGHTS)
        if value.shape != self._weights[tensor].shape:
            return diverged(name, f"the shape is {value.shape}, expected {self._weights[tensor].shape}")
        gradient = self._truth.values[GRADIENTS + tensor]
        budget = self._truth.budget(GRADIENTS + tensor, self._dtype)
        before = self._weights[tensor].astype(np.float64)
        least, most = (before - self._rate * _first_step(gradient + side * budget) for side in (1, -1))
        beyond = np.maximum(np.maximum(value - most, least - value), 0.0)
        rounding = rounding_of_first_step(self._rate, float(np.abs(before).max(initial=0.0)), self._dtype)
        return judge_error(name, float(beyond.max(initial=0.0)), rounding)


def _first_step(gradient: Array) -> Array:
    """Return the length of Adam's first step, in multiples of the rate."""
    return gradient / (np.abs(gradient) + EPSILON)


class _Derivation:
    """A worker process that computes losses and gradients in one framework."""

    def __init__(self, framework: str, folder: Path, threads: int, time_limit: float) -> None:
        self._folder = folder
        self._worker = Worker((sys.executable, *WORKER), folder / f"derivation-{framework}.log", threads, time_limit)
        settings = {"framework": framework, "device": "cpu", "dtype": "float64", "mode": "eager"}
        self._worker.send("start", settings)
        self._count = 0

    def __enter__(self) -> "_Derivation":
        self._worker.receive()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._worker.close()

    def derive(
        self, checkpoint: Checkpoint, batch: Batch, masks: Mapping[str, Array], dtype: str
    ) -> tuple[float, Mapping[str, Array]]:
        """Return loss and gradients."""
        self._count += 1
        names = ("checkpoint", "batch", "masks", "results")
        paths = {name: self._folder / f"derivation-{self._count}-{name}.npz" for name in names}
        checkpoints.save(checkpoint, paths["checkpoint"])
        npz.write(paths["batch"], batch.arrays())
        npz.write(paths["masks"], masks)
        self._worker.send("gradients", {"dtype": dtype, **{name: str(path) for name, path in paths.items()}})
        self._worker.receive()
        results = npz.read(paths["results"])
        for path in paths.values():
            path.unlink()
        loss = float(results.pop(LOSS))
        return loss, {name.removeprefix(GRADIENTS): value for name, value in results.items()}

    def confirm(self, checkpoint: Checkpoint, batch: Batch) -> None:
        """Compare the float64 gradients with derivatives of the reference.

        Raises:
            WorkerError: they differ.
        """
        loss, gradients = self.derive(checkpoint, batch, {}, "float64")
        units = disagreement(loss, gradients, *reference_loss(checkpoint, batch, {}))
        if not units <= 1:
            raise WorkerError(
                f"its float64 gradients are {units:.3g} times as far from the reference as allowed", fatal=True
            )
