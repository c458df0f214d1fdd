"""What ``--resume`` reuses: earlier results with the same code, model, packages and settings."""

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict

from triglot import bench, impls, parity, shared
from triglot.bench.report.report import Comparison, Report, Surroundings
from triglot.shared.environment import environment, hash_of_code
from triglot.shared.errors import BenchError

from .cases import Case, Cell, Settings
from .work import BenchedModel


class EarlierResults:
    """The results of an earlier report, or of none, and what results depend on now.

    ``requested`` holds the ids of the cases that are asked for now.

    Raises:
        BenchError: the report was measured in a different way, or has a model that is not asked for.
    """

    def __init__(
        self,
        report: Report | None,
        models: Mapping[str, BenchedModel],
        settings: Settings,
        requested: Collection[str],
    ) -> None:
        if report is None:
            report = Report({}, Surroundings({}), [], [], [])
        else:
            _check_resumable(report, models, settings)
        self.results = {result.case.id: result for result in report.results}
        self.others = report.surroundings.others
        self._comparisons = report.comparisons
        self._requested = requested
        self._digests = {name: model.digest() for name, model in models.items()}
        self._facts = [hash_of_code((impls, shared, parity, bench)), environment(), settings.affecting_results()]

    def digest(self, case: Case) -> str:
        """Return a hash of all that a result depends on: case, model, code, environment and settings."""
        content = [case.id, asdict(case.cell), self._digests[case.cell.model], *self._facts]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def unrequested(self) -> list[Case]:
        """Return the cases that are not asked for now, all of which stay in the report.

        Raises:
            BenchError: one was measured with a different model, code or packages, so it cannot stay.
        """
        cases = [result.case for name, result in self.results.items() if name not in self._requested]
        for case in cases:
            if not self.is_reusable(case):
                raise BenchError(
                    f"cannot resume: the file has {case.id}, which is not asked for and was measured with different "
                    "code, packages, weights, heads or tokenizer; write to another file"
                )
        return cases

    def requested(self) -> list[Case]:
        """Return the cases that are asked for now and have a result from the same conditions."""
        cases = [result.case for name, result in self.results.items() if name in self._requested]
        return [case for case in cases if self.is_reusable(case)]

    def is_reusable(self, case: Case) -> bool:
        """Return whether the report has the result of the same case under the same conditions."""
        result = self.results.get(case.id)
        return result is not None and result.digest == self.digest(case)

    def is_done(self, case: Case) -> bool:
        """Return whether a case need not be timed again: it was timed, and its baseline did not fail."""
        if not self.is_reusable(case) or self.results[case.id].status != "ok":
            return False
        if comparisons := self._comparisons_of(case):
            return all(self._has_live_baseline(comparison) for comparison in comparisons)
        # The baseline may have died too late to be replaced. Then several cases lack a ratio, and are timed again.
        timed = [result.case for result in self.results.values() if result.status == "ok" and not result.case.is_twin]
        is_alone = all(other.arm == case.arm for other in timed if other.cell == case.cell)
        is_baseline = any(comparison.b == case.id for comparison in self._comparisons)
        return is_alone or is_baseline

    def comparisons_to_keep(self, case: Case) -> list[Comparison]:
        """Return the ratios of a case, except those to a requested baseline that failed: it is timed again."""
        return [
            comparison
            for comparison in self._comparisons_of(case)
            if self._has_live_baseline(comparison) or comparison.b not in self._requested
        ]

    def baseline(self, cell: Cell, cases: Sequence[Case]) -> Case | None:
        """Return the baseline of a cell: the timed case that others were compared with, or the first one."""
        baselines = {comparison.b for comparison in self._comparisons}
        members = [case for case in cases if case.cell == cell and not case.is_twin]
        return next((case for case in members if case.id in baselines), members[0] if members else None)

    def _comparisons_of(self, case: Case) -> list[Comparison]:
        return [comparison for comparison in self._comparisons if comparison.a == case.id]

    def _has_live_baseline(self, comparison: Comparison) -> bool:
        baseline = self.results.get(comparison.b)
        return baseline is not None and baseline.status == "ok"


def _check_resumable(earlier: Report, models: Collection[str], settings: Settings) -> None:
    before, now = earlier.surroundings.settings, settings.affecting_results()
    if changed := [f"{name} {before.get(name)}, not {now[name]}" for name in now if before.get(name) != now[name]]:
        raise BenchError(f"cannot resume: the file was measured with {', '.join(changed)}; write to another file")
    if missing := [name for name in earlier.models if name not in models]:
        raise BenchError(
            f"cannot resume: the file has {missing[0]}, which is not asked for; add it, or write elsewhere"
        )
