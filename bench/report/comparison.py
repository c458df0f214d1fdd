"""Has anything become slower? Compare two reports, case by case."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from triglot.shared.errors import BenchError

from .report import Report
from .statistics import Ratio, unpaired_ratio

Verdict = Literal["slower", "faster", "same", "gone"]

# Two runs differ by more than the arms of one run, because the machine changes in between. On an idle machine, the same
# report made twice differed by 3% in its worst case.
LEAST_CHANGE = 0.05


@dataclass(frozen=True)
class Change:
    """How many times as long a case takes now.

    "same": no difference beyond chance and ``LEAST_CHANGE`` was found. "gone": the case was timed before and could not
    be timed now. Then ``ratio`` is None, and ``reason`` says why.
    """

    id: str
    ratio: Ratio | None
    verdict: Verdict
    reason: str = ""

    @property
    def is_regression(self) -> bool:
        """Whether the case is slower, or can no longer be timed."""
        return self.verdict in ("slower", "gone")


@dataclass(frozen=True)
class Changes:
    """The changes since an earlier report, the worst first, and other differences that may explain them."""

    cases: Sequence[Change] = ()
    differences: Sequence[str] = ()


NO_CHANGES = Changes()


def check_comparable(old: Report, configurations: Mapping[str, Mapping[str, Any]], ids: Sequence[str]) -> None:
    """Check, before anything is timed, that there will be something to compare.

    ``configurations`` maps models to their configurations in plain JSON types; ``ids`` are the cases to be timed.

    Raises:
        BenchError: the old report has a different configuration, or none of the cases.
    """
    for name in old.models.keys() & configurations.keys():
        before, now = old.models[name].config, configurations[name]
        if changed := sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key)):
            raise BenchError(
                f"the earlier report has {name} with {changed[0]} {before.get(changed[0])!r}, expected "
                f"{now.get(changed[0])!r}; compare with a report of the same configuration"
            )
    timed = [result.case.id for result in old.results if result.rounds and not result.case.is_twin]
    if not set(ids) & set(timed):
        raise BenchError(
            f"the earlier report has timed {timed[0] if timed else 'nothing'}, but not {ids[0]}; compare with a "
            "report of the same cases"
        )


def compare(old: Report, new: Report) -> Changes:
    """Compare the cases of the new report with the old one.

    A case has changed if the whole interval of its ratio lies beyond ``LEAST_CHANGE`` and beyond what the intervals do
    not cover: in a report in which every arm had one process, its noise floor.
    """
    floor = max([LEAST_CHANGE, *(report.noise_floor or 0.0 for report in (old, new) if not report.has_processes)])
    before = {result.case.id: result for result in old.results if result.rounds}
    changes: list[Change] = []
    for result in new.results:
        name = result.case.id
        if result.case.is_twin or name not in before:
            continue
        if result.status != "ok" or not result.rounds:
            changes.append(Change(name, None, "gone", f"{result.status}: {result.failure}"))
            continue
        earlier = before[name]
        ratio = unpaired_ratio(result.rounds, earlier.rounds, result.processes, earlier.processes)
        verdict: Verdict = "same"
        if ratio.low > 1 + floor:
            verdict = "slower"
        if ratio.high < 1 / (1 + floor):
            verdict = "faster"
        changes.append(Change(name, ratio, verdict))
    changes.sort(key=lambda change: -change.ratio.median if change.ratio else float("-inf"))
    return Changes(changes, _differences(old, new))


def _differences(old: Report, new: Report) -> list[str]:
    """Return what else differs, in words."""
    before, now = (_facts(report, old.models.keys() & new.models.keys()) for report in (old, new))
    for facts, others in ((now, before), (before, now)):
        if "instructions" not in others:  # as in reports from before 29 November 2026
            facts.pop("instructions", None)
    return [
        f"{name} was {before.get(name, 'not set')}, is {now.get(name, 'not set')}"
        for name in sorted(before.keys() | now.keys())
        if before.get(name) != now.get(name)
    ]


def _facts(report: Report, models: Iterable[str]) -> dict[str, Any]:
    environment = report.surroundings.environment
    facts = {
        **{name: environment.get(name) for name in ("processor", "instructions", "cores")},
        **environment["packages"],
        **report.surroundings.settings,
        **environment.get("variables", {}),
        **{f"weights of {name}": report.models[name].weights_digest[:12] for name in models},
    }
    return {name: value for name, value in facts.items() if value is not None}
