"""Forward passes: every named value, and what the public methods return."""

import math
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from triglot.parity.checks import LOCAL, Check
from triglot.parity.jobs import Job, Results
from triglot.parity.judge import Subject, failure, judge_check, judge_steps, own_inputs
from triglot.parity.report import Row
from triglot.parity.truth import Reference, Truth
from triglot.shared.arrays import Array
from triglot.shared.worker import WorkerError

from .findings import Findings
from .trial import Answers, Subjects


class ForwardTrial:
    """A forward pass in one check. ``reference`` has the weights of the check."""

    def __init__(self, check: Check, subjects: Subjects, reference: Reference, findings: Findings, seed: int) -> None:
        self.name = check.name
        self._check = check
        self._subjects = subjects
        self._reference = reference
        self._findings = findings
        self._seed = seed
        self._replaced: Mapping[str, Array] = {}

    def job(self) -> Job:
        """See ``Trial.job``."""
        self._replaced = self._reference.replacements(self._check, self._seed)
        kind = "values and methods" if self._check.methods else "values"
        return Job(kind, self._check.weights, self._check.batch, self._replaced)

    def judge(self, answers: Answers) -> Iterator[Row]:
        """See ``Trial.judge``. There is a row for every value that every framework gives."""
        check, reference = self._check, self._reference
        truth = reference.truth_of_values(check.batch, self._replaced)  # while the workers work
        noise: Results = reference.noise_of_steps(check.batch, truth.values) if check.steps else {}
        if not self._findings.amplification:
            self._findings.amplification = _ratios(truth.noise, noise)
        for framework, results in answers:
            subject = self._subjects[framework]
            if isinstance(results, WorkerError):
                yield failure(subject, check.name, results)
            else:
                yield from self._judge(subject, truth, noise, results)

    def _judge(self, subject: Subject, truth: Truth, noise_of_steps: Results, results: Results) -> Iterator[Row]:
        """Judge what a framework gives. Its first divergence is confirmed with noise from more runs.

        If the check asks for it, or the framework's own values exceed their budgets, each step is also judged on what
        it really received: the reference computes every step from the framework's values before it.
        """
        check, reference = self._check, self._reference
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
            if _exceeds(steps) and subject.framework not in self._findings.diverged:
                local = local.confirmed({})
                steps = judge_steps(subject, LOCAL, check, local, results, config)
            self._note(subject, steps)
            moves = local.noise
            yield from steps
        if _exceeds(rows) and subject.framework not in self._findings.diverged:
            rows = judge_check(subject, check, truth.confirmed(moves), results, config)
        self._note(subject, rows)
        yield from rows

    def _note(self, subject: Subject, rows: Iterable[Row]) -> None:
        if _exceeds(rows):
            self._findings.diverged.add(subject.framework)


def _ratios(whole: Results, alone: Results) -> dict[str, float]:
    """Return the ratio of the largest entries of each value, where both are known and finite."""
    largest = {name: (float(whole[name].max(initial=0)), float(noise.max(initial=0))) for name, noise in alone.items()}
    return {name: a / b for name, (a, b) in largest.items() if math.isfinite(a) and math.isfinite(b) and b > 0}


def _exceeds(rows: Iterable[Row]) -> bool:
    return any(row.verdict == "diverged" and row.budget is not None for row in rows)
