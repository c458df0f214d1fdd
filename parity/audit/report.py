"""What an audit found: per bug, and per rule."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from triglot.shared.arrays import HALVES
from triglot.shared.environment import environment

from . import padiff, rules
from .catalogue import BLIND, BUGS, INVISIBLE
from .run import NOTHING, Outcome

SCHEMA = "triglot.audit/1"
VERDICT = "the verdict of triglot parity"


@dataclass(frozen=True)
class BugLine:
    """One bug over all its tries: how many were caught and located, by which check mostly, and by how much at least.

    ``times_budget``: the least error by framework, in multiples of the budget; None if it was NaN or a missing value.
    ``caught_in_methods``: how many tries were caught of those where only the public methods had the bug.
    """

    bug: str
    tries: int
    caught: int
    located: int
    check: str
    times_budget: dict[str, float | None]
    tries_in_methods: int
    caught_in_methods: int


@dataclass(frozen=True)
class RuleLine:
    """The results of one rule: how many bugs it catches in every try, and its alarms on correct code.

    Only bugs in the forward pass are counted, because the simpler rules check nothing else, and only the number formats
    in which bugs were planted, because no fixed tolerance suits them all.
    """

    rule: str
    bugs: int
    bugs_caught: int
    correct_runs: int
    alarms: int


@dataclass(frozen=True)
class CorrectLine:
    """The verdicts on correct models in one framework and one number format.

    ``not_finite``: the number of models with a value that overflowed in the reference and could not be judged; all
    their other values passed. ``errors``: the number of models without any result. ``alarms``: the models that were
    wrongly reported as diverged, with the place and the error in multiples of the budget. ``largest_share``: the
    largest share of a budget in any model without an alarm.
    """

    framework: str
    dtype: str
    models: int
    passed: int
    not_finite: int
    errors: int
    alarms: list[dict[str, Any]]
    largest_share: float


@dataclass(frozen=True)
class AuditReport:
    """All outcomes of an audit."""

    outcomes: Sequence[Outcome]

    @property
    def bug_lines(self) -> list[BugLine]:
        """A line for each bug, in the order of the catalogue."""
        names = dict.fromkeys(outcome.bug for outcome in self.outcomes if outcome.bug != NOTHING)
        places = {name: place for place, name in enumerate(BUGS)}
        return [self._bug_line(name) for name in sorted(names, key=lambda name: places.get(name, -1))]

    @property
    def rule_lines(self) -> list[RuleLine]:
        """A line for each rule, ours first."""
        dtypes = {outcome.dtype for outcome in self.outcomes if outcome.bug != NOTHING}
        in_forward_pass = [
            outcome for outcome in self.outcomes if outcome.complaints and (outcome.dtype in dtypes or not dtypes)
        ]
        lines: list[RuleLine] = []
        for rule in (VERDICT, *rules.NAMES, *padiff.RULES):
            tries = [outcome for outcome in in_forward_pass if rule in (VERDICT, *outcome.complaints)]
            correct = [outcome for outcome in tries if outcome.bug == NOTHING]
            bugs = {outcome.bug for outcome in tries} - {NOTHING}
            missed = {outcome.bug for outcome in tries if not complains(outcome, rule)} - {NOTHING}
            alarms = sum(complains(outcome, rule) for outcome in correct)
            if tries:
                lines.append(RuleLine(rule, len(bugs), len(bugs - missed), len(correct), alarms))
        return lines

    @property
    def correct_lines(self) -> list[CorrectLine]:
        """A line for each framework and number format in which correct models were tried."""
        correct: dict[tuple[str, str], list[Outcome]] = {}
        for outcome in self.outcomes:
            if outcome.bug == NOTHING:
                correct.setdefault((outcome.framework, outcome.dtype), []).append(outcome)
        return [_correct_line(framework, dtype, outcomes) for (framework, dtype), outcomes in correct.items()]

    @property
    def sound(self) -> bool:
        """Whether every bug that can be seen was caught, and every correct model ran without an alarm."""
        return all(
            outcome.verdict in ("pass", "incomplete") if outcome.bug == NOTHING else outcome.verdict == "diverged"
            for outcome in self.outcomes
            if not _is_hidden(outcome) and not _is_impossible(outcome)
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain JSON types."""
        return {
            "schema": SCHEMA,
            "environment": environment(),
            "dtypes": sorted({outcome.dtype for outcome in self.outcomes}),
            "sound": self.sound,
            "bugs": [asdict(line) for line in self.bug_lines],
            "rules": [asdict(line) for line in self.rule_lines],
            "correct": [asdict(line) for line in self.correct_lines],
            "invisible_in_methods": INVISIBLE,
        }

    def _bug_line(self, bug: str) -> BugLine:
        own = [outcome for outcome in self.outcomes if outcome.bug == bug]
        tries = [outcome for outcome in own if not outcome.only_without_probe]
        in_methods = [outcome for outcome in own if outcome.only_without_probe]
        caught = [outcome for outcome in tries if outcome.verdict == "diverged"]
        checks = Counter(outcome.check for outcome in caught).most_common(1)
        return BugLine(
            bug=bug,
            tries=len(tries),
            caught=len(caught),
            located=sum(outcome.located for outcome in tries),
            check=checks[0][0] if checks else "",
            times_budget={
                framework: _finite(min(outcome.times_budget for outcome in tries if outcome.framework == framework))
                for framework in dict.fromkeys(outcome.framework for outcome in tries)
            },
            tries_in_methods=len(in_methods),
            caught_in_methods=sum(outcome.verdict == "diverged" for outcome in in_methods),
        )


def _correct_line(framework: str, dtype: str, outcomes: Sequence[Outcome]) -> CorrectLine:
    verdicts = Counter(outcome.verdict for outcome in outcomes)
    return CorrectLine(
        framework=framework,
        dtype=dtype,
        models=len(outcomes),
        passed=verdicts["pass"],
        not_finite=verdicts["incomplete"],
        errors=verdicts["error"],
        alarms=[
            {"seed": outcome.seed, "found_at": outcome.found_at, "times_budget": _finite(outcome.times_budget)}
            for outcome in outcomes
            if outcome.verdict == "diverged"
        ],
        largest_share=max((outcome.times_budget for outcome in outcomes if outcome.verdict != "diverged"), default=0.0),
    )


def _is_hidden(outcome: Outcome) -> bool:
    """Return whether it is known that this bug cannot be seen: in 16 bits, or from the results of the methods alone."""
    if outcome.only_without_probe:
        return outcome.bug in INVISIBLE or outcome.dtype in HALVES
    return outcome.bug in BLIND.get(outcome.dtype, ())


def _is_impossible(outcome: Outcome) -> bool:
    """Return whether the framework refuses the number format: PaddlePaddle has no 16-bit kernels on a CPU."""
    return outcome.verdict == "error" and outcome.framework == "paddle" and outcome.dtype in HALVES


def complains(outcome: Outcome, rule: str) -> bool:
    """Return whether a rule complains about what was tried."""
    return outcome.verdict == "diverged" if rule == VERDICT else outcome.complaints.get(rule, False)


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None
