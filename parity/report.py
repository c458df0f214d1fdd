"""The outcome of a parity run: one row for each value of each check, a verdict, and the first divergence."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

SCHEMA = "triglot.parity/1"

RowVerdict = Literal["pass", "diverged", "error", "skipped"]
Verdict = Literal["pass", "diverged", "incomplete", "error"]

EXIT_CODES: Mapping[Verdict, int] = {"pass": 0, "diverged": 1, "incomplete": 2, "error": 2}


@dataclass(frozen=True)
class Row:
    """One named value of one check in one framework.

    ``error`` is the largest distance from the truth, ``noise`` that of a correct implementation, ``budget`` the
    largest accepted. A number that is not finite is None, and ``reason`` says why.
    """

    check: str
    framework: str
    mode: str
    dtype: str
    name: str
    error: float | None
    noise: float | None
    budget: float | None
    verdict: RowVerdict
    reason: str = ""

    @property
    def strain(self) -> float:
        """How much of the budget is used up: over 1 is a divergence. Infinite when there is no number."""
        if self.error is None or self.budget is None:
            return math.inf
        if self.error == 0:
            return 0.0
        return self.error / self.budget if self.budget else math.inf

    @property
    def times_noise(self) -> float | None:
        """The error in multiples of the noise; None when the noise is zero or there is no number."""
        if self.error is None or not self.noise:
            return None
        return self.error / self.noise


@dataclass(frozen=True)
class Divergence:
    """The first value that broke its budget. "local": made by the step itself; "inherited": built up before it."""

    name: str
    kind: Literal["local", "inherited"]


@dataclass(frozen=True)
class Report:
    """Everything that a parity run found. ``first_divergence`` holds the frameworks that diverged."""

    model: str
    inputs: str
    config: dict[str, Any]
    weights_digest: str
    environment: dict[str, Any]
    frameworks: tuple[str, ...]
    rows: tuple[Row, ...]
    first_divergence: dict[str, Divergence] = field(default_factory=lambda: {})

    @property
    def verdict(self) -> Verdict:
        """A divergence beats a failure; nothing judged is a failure."""
        verdicts = {row.verdict for row in self.rows}
        if "diverged" in verdicts:
            return "diverged"
        judged = {row.framework for row in self.rows if row.verdict == "pass"}
        if not judged:
            return "error"
        return "pass" if verdicts == {"pass"} and judged == set(self.frameworks) else "incomplete"

    @property
    def exit_code(self) -> int:
        """0 all is well, 1 a divergence, 2 it could not run to its end."""
        return EXIT_CODES[self.verdict]

    def to_dict(self) -> dict[str, Any]:
        """The report as plain JSON types, ``triglot.parity/1``."""
        return {
            "schema": SCHEMA,
            "model": self.model,
            "inputs": self.inputs,
            "config": self.config,
            "weights_digest": self.weights_digest,
            "environment": self.environment,
            "verdict": self.verdict,
            "checks": [asdict(row) for row in self.rows],
            "first_divergence": {name: asdict(found) for name, found in self.first_divergence.items()},
        }


def worst(rows: Iterable[Row]) -> Row:
    """The row that is closest to its budget, or furthest beyond it; one without a number comes first."""
    return max(rows, key=lambda row: (row.verdict != "pass", row.strain))
