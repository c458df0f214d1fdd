"""A sweep: for each cell, start every arm in a process of its own, judge its outputs, and let the arms take turns.

Only a few workers are alive at once: the baseline, and a group of arms that are compared with it. After its rounds
(``rounds.py``), the group is replaced by the next one. A twin, a second worker of the baseline, shows the noise.
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from triglot.bench.machine import memory
from triglot.bench.report.report import Comparison, Result
from triglot.shared.errors import CheckpointError, InputError

from .arms import ARMS
from .cases import Case, Cell
from .resume import EarlierResults
from .rounds import ExtraTime, take_turns
from .settings import Settings
from .toolchain import Toolchain
from .work import BenchedModel, Work
from .workers import OnStep, Workers

MEMORY_MB = 10 * 1024  # for all workers that are alive at once, so that a sweep of BERT-base stays below 12 GB


class Sweep:
    """The results of one model, in ``results`` and ``comparisons``.

    ``command`` starts a worker. ``on_step`` receives a description of each step, and ``on_results`` is called after
    each group. ``facts`` is what results depend on, for their digest. ``toolchain`` holds prepared compiler caches.
    """

    def __init__(
        self,
        model: BenchedModel,
        arms: Sequence[str],
        settings: Settings,
        *,
        command: Sequence[str],
        on_step: OnStep = lambda _: None,
        on_results: Callable[[], None] = lambda: None,
        earlier: EarlierResults | None = None,
        facts: Mapping[str, Any] | None = None,
        toolchain: Toolchain | None = None,
    ) -> None:
        self._model = model
        self._arms = arms
        self._settings = settings
        self._command = command
        self._on_step = on_step
        self._on_results = on_results
        self._facts = dict(facts or {})
        self._earlier = earlier or EarlierResults(None, model.name, self._facts)
        self._toolchain = toolchain
        self._generator = np.random.default_rng(settings.seed)
        self.results: list[Result] = []
        self.comparisons: list[Comparison] = []
        self.environments: dict[str, Any] = {}
        self.others: dict[str, float | None] = {}

    def reuse_unrequested(self) -> None:
        """Take over the earlier results that are not asked for now.

        Raises:
            BenchError: see ``EarlierResults.unrequested``.
        """
        for case in self._earlier.unrequested():
            self._reuse(case)

    def has_work(self, cell: Cell) -> bool:
        """Return whether a cell has an arm that can take part and has not been timed."""
        return any(
            not self._earlier.is_done(Case(arm, cell)) and self._why_unsupported(arm, cell) is None
            for arm in self._arms
        )

    def run(self, cell: Cell) -> None:
        """Time every arm in ``cell``. Whatever goes wrong with one becomes its result."""
        with tempfile.TemporaryDirectory(prefix="triglot-") as folder:
            try:
                work = Work(self._model, cell, self._settings, Path(folder))
            except (InputError, CheckpointError) as error:  # too long, or the weights do not fit the dtype
                for arm in self._arms:
                    self._skip(Case(arm, cell), str(error))
                return
            if cases := self._cases_to_time(cell):
                self._time(cell, cases, work)
            else:
                for arm in self._arms:  # a twin that failed has nothing to be timed beside
                    if not self._has_result(twin := Case(arm, cell, is_twin=True)):
                        self._reuse(twin)

    def _cases_to_time(self, cell: Cell) -> list[Case]:
        """Return the cases that have to be timed. Reuse the results of others, and skip what is unsupported."""
        cases: list[Case] = []
        for arm in self._arms:
            case, twin = Case(arm, cell), Case(arm, cell, is_twin=True)
            if self._earlier.is_done(case):
                self._reuse(case)
                if self._earlier.is_done(twin):
                    self._reuse(twin)
            elif reason := self._why_unsupported(arm, cell):
                self._skip(case, reason)
            else:
                cases.append(case)
        return cases

    def _time(self, cell: Cell, cases: list[Case], work: Work) -> None:
        before = list(self.results)
        ids = {result.case.id for result in before}
        others = self.others.get(cell.id)  # while the reused results were timed
        timed = [result.case for result in before if result.status == "ok"]
        earlier_baseline = self._earlier.baseline(cell, timed)
        with Workers(work, self._settings, self._command, self._on_step, self._toolchain) as workers:
            for _ in self._groups(cases, earlier_baseline, workers):
                # After each group, so that an interrupted sweep loses little.
                now = workers.used_by_others()
                self.others[cell.id] = max(others, now or 0.0) if others else now
                self.environments |= workers.environments
                new = [result for result in workers.results() if result.case.id not in ids]
                for result in new:
                    result.digest = result.case.digest(self._facts)
                self.results = before + new
                self._on_results()

    def _groups(self, cases: list[Case], earlier_baseline: Case | None, workers: Workers) -> Iterator[None]:
        """Time the cases group by group. Yield after each group."""
        candidates = [earlier_baseline] if earlier_baseline is not None else []
        baseline: Case | None = None
        extra_time = ExtraTime()
        while cases:
            while (candidates or cases) and not workers.is_alive(baseline):
                baseline = (candidates or cases).pop(0)
                workers.start(baseline)
            if baseline is not None and workers.is_alive(baseline) and self._settings.again:
                twin = Case(baseline.arm, baseline.cell, is_twin=True)
                cases = [twin, *cases] if not self._has_result(twin) else cases
            size = group_size(workers.peak_mb(baseline), self._settings.together, memory.available_mb())
            groups = max(1, ceil(len(cases) / size))
            group, cases = cases[:size], cases[size:]
            alive = [case for case in group if workers.start(case)]
            extra_seconds = partial(extra_time.share_of_group, len(workers.results()), len(cases), groups)
            outcome = take_turns(baseline, alive, workers, self._generator, extra_seconds)
            baseline = outcome.baseline
            self.comparisons += outcome.comparisons
            extra_time.spend(outcome.extra_seconds)
            workers.close(case for case in alive if case != baseline)
            yield

    def _reuse(self, case: Case) -> None:
        """Take over the earlier result of a case, if there is one from the same conditions."""
        if self._earlier.is_reusable(case):
            self.results.append(self._earlier.results[case.id])
            self.comparisons += self._earlier.comparisons_to_keep(case)
            self.others.setdefault(case.cell.id, self._earlier.others.get(case.cell.id))

    def _skip(self, case: Case, reason: str) -> None:
        self.results.append(Result(case, "skipped", reason, digest=case.digest(self._facts)))

    def _has_result(self, case: Case) -> bool:
        return any(result.case == case for result in self.results)

    def _why_unsupported(self, arm: str, cell: Cell) -> str | None:
        return ARMS[arm].why_unsupported(self._model.checkpoint.config, cell.workload, cell.dtype, cell.device)


def group_size(baseline_mb: float, most: int, available_mb: float = float("inf")) -> int:
    """Return how many workers may be alive beside the baseline. Others take up to 1.5 times its memory.

    ``available_mb`` is the free memory of the machine while the baseline is alive.
    """
    room = min(MEMORY_MB - baseline_mb, available_mb)
    return most if baseline_mb <= 0 else max(1, min(most, int(room / (1.5 * baseline_mb))))
