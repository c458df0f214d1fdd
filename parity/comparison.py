"""Judge what every framework gives in a check, and confirm divergences."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from triglot.shared.arrays import Array
from triglot.shared.worker import WorkerError

from .checks import LOCAL, Check
from .judge import Subject, failure, judge_check, judge_steps, own_inputs
from .report import Row
from .truth import Reference, Truth

Results = Mapping[str, Array]


class Comparison:
    """The frameworks under test, and which of them have diverged so far."""

    def __init__(self, subjects: Sequence[Subject]) -> None:
        self._subjects = {subject.framework: subject for subject in subjects}
        self._diverged: set[str] = set()
        # How much larger the noise of the whole model is than that of each step alone, on the first inputs.
        self.amplification: dict[str, float] = {}

    def judge(
        self,
        check: Check,
        truth: Truth,
        reference: Reference,
        results: Iterable[tuple[str, Results | WorkerError]],
    ) -> Iterator[Row]:
        """Yield a row for every value that every framework gives in a check."""
        noise: Results = reference.noise_of_steps(check.batch, truth.values) if check.steps else {}
        if not self.amplification:
            self.amplification = _ratios(truth.noise, noise)
        for framework, result in results:
            if isinstance(result, WorkerError):
                yield failure(self._subjects[framework], check, result)
            else:
                yield from self._judge(self._subjects[framework], check, truth, noise, result, reference)

    def _judge(
        self,
        subject: Subject,
        check: Check,
        truth: Truth,
        noise_of_steps: Results,
        results: Results,
        reference: Reference,
    ) -> Iterator[Row]:
        """Judge what a framework gives. Its first divergence is confirmed with noise from more runs.

        If the check asks for it, or the framework's own values exceed their budgets, each step is also judged on what
        it really received: the reference computes every step from the framework's values before it.
        """
        config = reference.model.config
        rows = judge_check(subject, check, truth, results, config)
        moves: Results = {}
        if check.values is None and (check.steps or _exceeds(rows)):
            given = own_inputs(results, truth, subject.dtype)
            if all(np.isfinite(value).all() for value in given.values()):
                noise = noise_of_steps or reference.noise_of_steps(check.batch, truth.values)
                local = reference.truth_of_steps(check.batch, given, noise)
            else:  # an overflow, whose effect on the steps after it no other noise shows
                local = reference.truth_of_values(check.batch, given)
            steps = judge_steps(subject, LOCAL, check, local, results, config)
            if _exceeds(steps) and subject.framework not in self._diverged:
                local = local.confirmed({})
                steps = judge_steps(subject, LOCAL, check, local, results, config)
            self._note(subject, steps)
            moves = local.noise
            yield from steps
        if _exceeds(rows) and subject.framework not in self._diverged:
            rows = judge_check(subject, check, truth.confirmed(moves), results, config)
        self._note(subject, rows)
        yield from rows

    def _note(self, subject: Subject, rows: Iterable[Row]) -> None:
        if _exceeds(rows):
            self._diverged.add(subject.framework)


def _ratios(whole: Results, alone: Results) -> dict[str, float]:
    """Return the ratio of the largest entries of each value, where both are known and finite."""
    largest = {name: (float(whole[name].max(initial=0)), float(noise.max(initial=0))) for name, noise in alone.items()}
    return {name: a / b for name, (a, b) in largest.items() if math.isfinite(a) and math.isfinite(b) and b > 0}


def _exceeds(rows: Iterable[Row]) -> bool:
    return any(row.verdict == "diverged" and row.budget is not None for row in rows)
