"""Gradients and training: what a framework derives from a forward pass, and what a step of Adam makes of it.

A framework's float64 gradients are compared with derivatives of the reference, and its gradients in the dtype under
test with those in float64. Both are computed on loud weights, in a model of the same configuration (``revealing.py``).
"""

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from triglot.parity import adam
from triglot.parity.budgets import UNCONFIRMED_RUNS
from triglot.parity.checks import judged_tokens
from triglot.parity.gradients import GradientTruth, disagreement, reference_loss
from triglot.parity.jobs import Job, Results
from triglot.parity.judge import Subject, diverged, judge_error, judge_value, methods_of, mismatch
from triglot.parity.output_names import (
    API,
    CONTINUED,
    FIRST_MOMENTS,
    FRESH,
    GRADIENTS,
    LOSS,
    NOISE,
    RESUMED,
    SECOND_MOMENTS,
    TRAINED,
    TRUE,
    WEIGHTS,
)
from triglot.parity.report import Judgement, Row
from triglot.parity.truth import Reference, distance
from triglot.shared.arrays import Array
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.inputs import Batch

from .trial import Answers, Subjects, judge_each

GRADIENTS_CHECK, TRAINING_CHECK = "gradients", "training"


class DerivativeTrial:
    """The loss of a batch and its gradients; with ``dropout_masks`` also a step of Adam, at first and resumed.

    ``checkpoint``: the loud weights.
    """

    def __init__(
        self, subjects: Subjects, checkpoint: Checkpoint, batch: Batch, dropout_masks: Mapping[str, Array] | None
    ) -> None:
        self.name = GRADIENTS_CHECK if dropout_masks is None else TRAINING_CHECK
        self._trains = dropout_masks is not None
        self._subjects = subjects
        self._checkpoint = checkpoint
        self._batch = batch
        self._masks = dropout_masks or {}

    def job(self) -> Job:
        """See ``Trial.job``."""
        return Job("training" if self._trains else "gradients", "loud", self._batch, self._masks)

    def judge(self, answers: Answers) -> Iterator[Row]:
        """See ``Trial.judge``."""
        return judge_each(self.name, self._subjects, answers, self._judgements)

    def _judgements(self, subject: Subject, results: Results) -> Iterable[Judgement]:
        names = [LOSS, *(GRADIENTS + name for name in self._checkpoint.tensors)]
        unexpected = [name for name in results if name.startswith(GRADIENTS) and name not in names]
        yield from (diverged(name, "the reference has no such value") for name in unexpected)
        wrong = [name for name in names if self._mismatch(results, name, subject.dtype)]
        yield from (diverged(name, self._mismatch(results, name, subject.dtype)) for name in wrong)
        if wrong:
            return
        truth = GradientTruth(
            {name: results[TRUE + name].astype(np.float64) for name in names},
            {name: float(results[NOISE + name]) for name in names},
        )
        refuted = self._refuted(truth)
        for name in names:
            if name in refuted:
                reason = f"in float64 it is {refuted[name]:.3g} times as far from the reference as rounding explains"
                yield diverged(name, reason)
            else:
                error = distance(results[name], truth.values[name])
                yield judge_error(name, error, truth.budget(name, subject.dtype), truth.noise[name])
        if self._trains:
            moments = adam.drawn_moments(self._checkpoint.config)
            for run, before in ((FRESH, None), (RESUMED, moments)):
                yield from adam.judge_step(self._checkpoint.tensors, before, truth, results, run, subject.dtype)
            yield from self._next_step(truth, subject, results)

    def _next_step(self, truth: GradientTruth, subject: Subject, results: Results) -> Iterator[Judgement]:
        """Judge the step after the resumed one, and the model after it.

        That step begins with the framework's own weights and moments. Its gradients have to be those of a new model.
        """
        names = [*self._checkpoint.tensors]
        parts = (
            *(RESUMED + kind for kind in (FIRST_MOMENTS, SECOND_MOMENTS, WEIGHTS)),
            *(CONTINUED + kind for kind in (GRADIENTS, WEIGHTS)),
        )
        if missing := [part + name for part in parts for name in names if part + name not in results]:
            yield from (diverged(name, "the value is missing") for name in missing)
            return
        first, second, before, gradients, after = ({name: results[part + name] for name in names} for part in parts)
        moments = adam.Moments(adam.STEPS + 1, first, second)
        expected = {GRADIENTS + name: gradient.astype(np.float64) for name, gradient in gradients.items()}
        next_truth = GradientTruth(expected, truth.noise)
        yield from adam.judge_step(before, moments, next_truth, results, CONTINUED, subject.dtype)
        config = self._checkpoint.config
        shapes = {name: tensor.shape for name, tensor in self._checkpoint.tensors.items()}
        if any(after[name].shape != shapes[name] or not np.isfinite(after[name]).all() for name in names):
            return  # no model has such weights; their rows say so
        reference = Reference(Checkpoint(config, after), subject.dtype)
        outputs = reference.truth_of_values(self._batch, {}, UNCONFIRMED_RUNS)
        for name, method in methods_of(config).items():
            key = f"{TRAINED}{method.removeprefix(f'{API}.')}"
            places = judged_tokens(name, self._batch, config)
            value, noise = outputs.values[name], outputs.noise[name]
            yield judge_value(key, results.get(key), value, noise, name, subject, config, places)

    def _mismatch(self, results: Results, name: str, dtype: str) -> str:
        """Return how the loss or a gradient differs from what was expected; empty if shape and dtype are right."""
        shape = () if name == LOSS else self._checkpoint.tensors[name.removeprefix(GRADIENTS)].shape
        own, true = results.get(name), results.get(TRUE + name)
        return mismatch(own, shape, "float64" if name == LOSS else dtype) or mismatch(true, shape, "float64")

    def _refuted(self, truth: GradientTruth) -> dict[str, float]:
        """Return the float64 values that the reference refutes, with their errors in units of what is allowed."""
        true_loss, derivative = reference_loss(self._checkpoint, self._batch, self._masks)
        loss = float(truth.values[LOSS])
        gradients = {name.removeprefix(GRADIENTS): value for name, value in truth.values.items() if name != LOSS}
        if disagreement(loss, gradients, true_loss, derivative) <= 1:
            return {}
        # Which ones? A gradient that is right agrees along directions in which nothing else moves.
        units = {LOSS: disagreement(loss, gradients, true_loss, lambda _: 0.0, "")}
        for name in gradients:
            units[GRADIENTS + name] = disagreement(true_loss, gradients, true_loss, derivative, name)
        return {name: unit for name, unit in units.items() if not unit <= 1} or {LOSS: max(units.values())}
