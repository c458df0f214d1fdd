"""What came of a case, and of two of them side by side."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from triglot.bench.report.statistics import Ratio

from .cases import Case


@dataclass
class Result:
    """What became of a case. ``rounds``: milliseconds of each call, round by round; ``device``: by a GPU's clock."""

    case: Case
    status: str
    failure: str = ""
    facts: dict[str, Any] = field(default_factory=dict[str, Any])
    rounds: list[list[float]] = field(default_factory=list[list[float]])
    device: list[float] = field(default_factory=list[float])
    digest: str = ""


@dataclass(frozen=True)
class Comparison:
    """How many times as long case ``a`` takes as case ``b``."""

    a: str
    b: str
    ratio: Ratio


@dataclass(frozen=True)
class Known:
    """What an earlier sweep found: results by the id of the case, comparisons, and what others did by cell."""

    results: Mapping[str, Result] = field(default_factory=dict[str, Result])
    comparisons: Sequence[Comparison] = ()
    others: Mapping[str, float | None] = field(default_factory=dict[str, "float | None"])

    def of(self, model: str) -> "Known":
        """What is known of one model."""
        results = {name: one for name, one in self.results.items() if one.case.cell.model == model}
        return Known(results, [one for one in self.comparisons if one.a in results], self.others)
