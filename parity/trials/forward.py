"""Forward passes: every named value, and what the public methods return."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from triglot.parity.budgets import ORDINARY_SHARE
from triglot.parity.checks import END_TO_END, LOCAL, Check, judged_tokens
from triglot.parity.jobs import Job, Results
from triglot.parity.judge import Subject, confirmed, exceeding, failure, judge_check, judge_steps, own_inputs
from triglot.parity.output_names import API, MASKS
from triglot.parity.report import Row
from triglot.parity.truth import Reference, Truth
from triglot.shared.arrays import Array, as_received
from triglot.shared.model.schema import named_values
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
        if check.name == END_TO_END and not self._findings.amplification:
            self._findings.amplification = _ratios(truth.noise, noise)
        for framework, results in answers:
            subject = self._subjects[framework]
            if isinstance(results, WorkerError):
                yield failure(subject, check.name, results)
                if check.methods and not results.fatal:
                    yield failure(subject, API, results)
            else:
                yield from map(self._with_inputs, self._judge(subject, truth, noise, results))

    def _with_inputs(self, row: Row) -> Row:
        """Name the inputs of a divergence that appears under another check, such as ``local``."""
        if row.verdict != "diverged" or self.name in (END_TO_END, row.check):
            return row
        return replace(row, reason=f"{row.reason}, on the inputs of {self.name}")

    def _judge(self, subject: Subject, truth: Truth, noise_of_steps: Results, results: Results) -> Iterator[Row]:
        """Judge what a framework gives. What exceeds its budget is judged again, with noise from more runs.

        If the check asks for it, or the framework's own values exceed their budgets, each step is also judged on its
        actual inputs: the reference computes every step from the framework's values before it.
        """
        check, reference = self._check, self._reference
        config = reference.model.config
        wrong_steps = self._findings.wrong_steps[subject.framework]
        wrong_results = self._findings.wrong_results[subject.framework]

        def judge(truth: Truth) -> list[Row]:
            return judge_check(subject, check, truth, results, config)

        def judge_alone(truth: Truth) -> list[Row]:
            return judge_steps(subject, LOCAL, check, truth, results, config)

        rows = judge(truth)
        if check.values is not None:
            _, rows = confirmed(judge, truth, rows, explained=wrong_steps)
            wrong_steps |= exceeding(rows)
            yield from rows
            return
        moves: Results = {}
        steps: list[Row] = []
        given = own_inputs(results, truth, subject.dtype)
        if check.steps or _diverged(rows):
            if all(np.isfinite(value).all() for value in given.values()):
                noise = noise_of_steps or reference.noise_of_steps(check.batch, truth.values)
                local = reference.truth_of_steps(check.batch, given, noise)
            else:  # an overflow, whose effect on the steps after it no other noise shows
                local = reference.truth_of_values(check.batch, given)
            local, steps = confirmed(judge_alone, local, judge_alone(local), explained=wrong_steps)
            moves = local.noise
            # A compiled step may have read its inputs in another rounding than the probe shows.
            if subject.mode != "eager" and exceeding(steps) - wrong_steps:
                recomputed = reference.noise_of_recomputed_steps(check.batch, truth.values)
                steps = judge_alone(local.with_noise(recomputed))
            wrong_steps |= exceeding(steps)
            yield from steps
        # Wrong steps explain every error but that of the first value, which has nothing to inherit.
        inherited = [*named_values(config)][1:] if wrong_steps else []
        truth, rows = confirmed(judge, truth, rows, moves, wrong_results.union(inherited))
        if not wrong_steps and not _diverged(steps):
            rows = self._continued(truth, self._where_judged(given, truth, subject.dtype), judge, rows)
        wrong_results |= exceeding(rows)
        yield from rows

    def _continued(
        self, truth: Truth, given: Results, judge: Callable[[Truth], list[Row]], rows: list[Row]
    ) -> list[Row]:
        """Judge again, with additional noise from runs that begin with the framework's own values.

        Called only if no step exceeded its budget. A step may amplify rounding far more on the framework's values than
        in the noise runs. For example, if all entries of a token round to the same number, their norm is zero. If the
        values before the first divergence use up little of their budgets, the reference continues from them, and the
        result counts as one more noise run.
        """
        order = [*truth.values]
        continued_at = -1
        while diverged := [order.index(row.name) for row in _diverged(rows) if row.name in order]:
            first = min(diverged)
            beginning = {name: given[name] for name in order[:first] if name in given}
            shares = [row.budget_used for row in rows if row.check == self.name and row.name in beginning]
            if first <= continued_at or len(beginning) < first or max(shares, default=1.0) > ORDINARY_SHARE:
                break
            continued_at = first
            truth = truth.with_run(self._reference.rounded_trace(self._check.batch, beginning, self._seed, {}))
            rows = judge(truth)
        return rows

    def _where_judged(self, given: Results, truth: Truth, dtype: str) -> Results:
        """Return the framework's values, but the true ones where no step is judged: a bug there must not be noise."""

        def judged(name: str, value: Array) -> Array:
            places = judged_tokens(name, self._check.batch, self._reference.model.config)
            return value if places is None else np.where(places, value, as_received(truth.values[name], dtype))

        return {name: judged(name, value) for name, value in given.items()}


def _ratios(whole: Results, alone: Results) -> dict[str, float]:
    """Return the ratio of the largest entries of each value, where both are known and finite."""
    largest = {name: (float(whole[name].max(initial=0)), float(noise.max(initial=0))) for name, noise in alone.items()}
    return {name: a / b for name, (a, b) in largest.items() if math.isfinite(a) and math.isfinite(b) and b > 0}


def _diverged(rows: Iterable[Row]) -> list[Row]:
    """Return the rows of named values and results that diverged, with a number or without. Masks are not computed."""
    return [row for row in rows if row.verdict == "diverged" and row.check != MASKS]
