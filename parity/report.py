"""The outcome of a parity run: a row for each value of each check, a verdict, and the first divergence."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeVar

SCHEMA = "triglot.parity/1"
WORKER = "worker"  # not a check: the row of a framework that died or could not be built
ORIGINAL = "original"  # the check of the model that was ported, in its own library

RowVerdict = Literal["pass", "diverged", "error", "skipped"]
Verdict = Literal["pass", "diverged", "incomplete", "error"]

EXIT_CODES: Mapping[Verdict, int] = {"pass": 0, "diverged": 1, "incomplete": 2, "error": 2}


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """One value, judged against the truth.

    ``error`` is its largest distance from the truth, ``noise`` the largest distance of the noise runs, and ``budget``
    the largest accepted error: all three of the entries that use up most of their budget, which are the whole value, or
    one channel or row of it. A number that is not finite, or not known, is None, and ``reason`` says why.
    """

    name: str
    error: float | None = None
    noise: float | None = None
    budget: float | None = None
    verdict: RowVerdict
    reason: str = ""

    @property
    def budget_used(self) -> float:
        """The share of the budget that the error uses up: over 1 is a divergence. Infinite if there is no number."""
        if self.error is None or self.budget is None:
            return math.inf
        if self.error == 0:
            return 0.0
        return self.error / self.budget if self.budget else math.inf

    @property
    def times_noise(self) -> float | None:
        """The error in multiples of the noise; None if the noise is zero or there is no number."""
        if self.error is None or not self.noise:
            return None
        return self.error / self.noise


@dataclass(frozen=True, kw_only=True)
class Row(Judgement):
    """The judgement of one named value in one check of one framework."""

    check: str
    framework: str
    mode: str
    dtype: str


ROW_FIELDS = ("check", "framework", "mode", "dtype", "name", "error", "noise", "budget", "verdict", "reason")

_SEVERITY: Mapping[RowVerdict, int] = {"pass": 0, "skipped": 1, "error": 2, "diverged": 3}

AnyJudgement = TypeVar("AnyJudgement", bound=Judgement)


def worst(judgements: Iterable[AnyJudgement]) -> AnyJudgement:
    """Return the judgement that uses up most of its budget. A divergence comes before whatever could not be judged."""
    return max(judgements, key=lambda judgement: (_SEVERITY[judgement.verdict], judgement.budget_used))


@dataclass(frozen=True)
class Divergence:
    """The first value that exceeded its budget, by itself ("local") or because of earlier steps ("inherited").

    ``check``: the check that shows it, and in which the error is largest.
    """

    name: str
    kind: Literal["local", "inherited"]
    check: str


@dataclass(frozen=True, repr=False)
class Report:
    """Everything that a parity run found. ``print(report)`` shows it in a few lines.

    ``first_divergence`` maps each framework that diverged to the place. ``amplification`` says for each value how much
    larger the noise of the whole model is than the noise of the step alone, on the first inputs. ``unchecked``: the
    kinds of check that apply to the model, but were not run. ``lacking``: the invariants that were not judged, because
    they do not hold for the model. ``blind``: planted bugs that apply to the model, but that this number format is too
    coarse to show. ``originals``: sentences that say what the port was compared with, whether the weights differ, or
    why it was not compared.
    """

    model: str
    inputs: str
    config: dict[str, Any]
    weights_digest: str
    environment: dict[str, Any]
    frameworks: tuple[str, ...]
    rows: tuple[Row, ...]
    first_divergence: dict[str, Divergence] = field(default_factory=lambda: {})
    amplification: dict[str, float] = field(default_factory=lambda: {})
    unchecked: tuple[str, ...] = ()
    lacking: tuple[str, ...] = ()
    blind: tuple[str, ...] = ()
    originals: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [f"{self.model}: {self.inputs}", f"number format {self.settings}"]
        for framework in self.frameworks:
            judged = [row for row in self.rows if row.framework == framework and row.verdict != "error"]
            if judged:
                row = worst(judged)
                share = f"{row.budget_used:,.0%} of its budget" if row.budget_used < math.inf else row.reason
                lines.append(f"{framework}: {len(judged)} values, the worst {row.name} in {row.check}: {share}")
        sentences = (*self.divergences, *self.failures, *self.skipped, *self.remarks)
        return "\n".join([*lines, *sentences, f"verdict: {self.verdict}"])

    def __repr__(self) -> str:
        return f"<Report of {self.model}: {self.verdict}, {len(self.rows)} rows>"

    @property
    def verdict(self) -> Verdict:
        """The verdict on the whole run. A divergence outranks a failure, and a run without results is an error."""
        verdicts = {row.verdict for row in self.rows}
        if "diverged" in verdicts:
            return "diverged"
        passed = {row.framework for row in self.rows if row.verdict == "pass"}
        if not passed:
            return "error"
        return "pass" if verdicts == {"pass"} and passed == set(self.frameworks) else "incomplete"

    @property
    def settings(self) -> str:
        """The number format and the mode, such as "float32, mode eager"; several if the rows differ in them."""
        return "; ".join(dict.fromkeys(f"{row.dtype}, mode {row.mode}" for row in self.rows if row.check != ORIGINAL))

    @property
    def divergences(self) -> list[str]:
        """A sentence for each framework that diverged: where first, in which check, and by how much."""
        sentences: list[str] = []
        for framework, first in self.first_divergence.items():
            if first.check == ORIGINAL:
                reason = self.row(framework, first.check, first.name).reason
                sentences.append(
                    f"the original, {framework}, computes something else: {first.name}: {reason}; correct the "
                    "configuration, or port the original again"
                )
                continue
            check = "" if first.check == first.kind else f", in {first.check}"
            reason = self.row(framework, first.check, first.name).reason
            sentences.append(f"first divergence of {framework}: {first.name} ({first.kind}){check}: {reason}")
        return sentences

    def row(self, framework: str, check: str, name: str) -> Row:
        """Return the judgement of a value in a check of a framework."""
        return next(row for row in self.rows if (row.framework, row.check, row.name) == (framework, check, name))

    @property
    def failures(self) -> list[str]:
        """A sentence for each framework and each reason why it gave no results."""
        failed: dict[tuple[str, str], list[str]] = {}
        for row in self.rows:
            if row.verdict == "error":
                failed.setdefault((row.framework, row.reason), []).append(row.check)
        where = {failure: "" if WORKER in checks else f" in {', '.join(checks)}" for failure, checks in failed.items()}
        return [f"{framework} gave no results{where[framework, reason]}: {reason}" for framework, reason in failed]

    @property
    def skipped(self) -> list[str]:
        """A sentence for each framework and each reason why some of its values could not be judged."""
        reasons = Counter((row.framework, row.reason) for row in self.rows if row.verdict == "skipped")
        return [
            f"{framework}: {number} value{'s' if number > 1 else ''} could not be judged: {reason}"
            for (framework, reason), number in reasons.items()
        ]

    @property
    def remarks(self) -> list[str]:
        """Sentences that say what the verdict does not cover, and what the port was compared with."""
        sentences: list[str] = []
        if self.blind:
            bugs = ", ".join(self.blind)
            sentences.append(f"bugs that this number format is too coarse to show: {bugs} (see docs/parity.md)")
        if self.lacking:
            invariants = ", ".join(self.lacking)
            sentences.append(f"invariants that do not hold in the reference, so they were not judged: {invariants}")
        if any(row.mode == "compiled" and row.check not in (WORKER, ORIGINAL) for row in self.rows):
            sentences.append(
                "in mode compiled, only the results of the public methods (api.*, invariants) come from the deployed "
                "program; other values come from one that can show them (see docs/parity.md)"
            )
        sentences += self.originals
        if self.unchecked:
            sentences.append(f"not checked: {', '.join(self.unchecked)} (see --check)")
        return sentences

    @property
    def exit_code(self) -> int:
        """The exit code of the command: 0 all is well, 1 a divergence, 2 the run could not be completed."""
        return EXIT_CODES[self.verdict]

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain JSON types, schema ``triglot.parity/1``."""
        return {
            "schema": SCHEMA,
            "model": self.model,
            "inputs": self.inputs,
            "config": self.config,
            "weights_digest": self.weights_digest,
            "environment": self.environment,
            "verdict": self.verdict,
            "checks": [{name: getattr(row, name) for name in ROW_FIELDS} for row in self.rows],
            "first_divergence": {name: asdict(divergence) for name, divergence in self.first_divergence.items()},
            "amplification": self.amplification,
            "unchecked": list(self.unchecked),
            "lacking": list(self.lacking),
            "blind": list(self.blind),
            "originals": list(self.originals),
        }
