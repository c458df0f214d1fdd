"""The sweep behind ``triglot bench``: start every arm in processes of its own, judge its outputs, and take turns.

Only a few workers are alive at once: the baseline, and a group of arms that are compared with it. After its rounds
(``rounds.py``), the group is replaced by the next one. A twin, the baseline once more, shows the noise.
"""

import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from math import ceil
from pathlib import Path

import numpy as np

from triglot import impls
from triglot.bench.machine import load, roofline
from triglot.bench.report.report import Comparison, ModelRecord, Report, Result, Surroundings
from triglot.shared.environment import environment
from triglot.shared.errors import TriglotError

from .arms import ARMS
from .cases import Case, Cell, Settings
from .pool import Workers
from .resume import EarlierResults
from .rounds import ExtraTime, take_turns
from .toolchain import Toolchain
from .work import BenchedModel, Work, check_cells

WORKER = (sys.executable, "-P", "-m", "triglot.bench.run.worker")
MEMORY_MB = 10 * 1024  # for all workers that are alive at once, so that a sweep of BERT-base stays below 12 GB


class Sweep:
    """The arms in the cells of some models, and what was measured for them so far.

    ``on_step`` receives how many cases are finished, with fractions, and a description of the current step.
    ``on_report`` receives the report so far, after each group. ``earlier`` is a report to complete: its results are not
    timed again if code, weights, environment and settings are the same, and results that are not asked for now stay in
    it. ``command`` starts a worker; the default is ``WORKER``.

    Raises:
        BenchError: ``earlier`` cannot be completed.
    """

    def __init__(
        self,
        models: Sequence[BenchedModel],
        cells: Sequence[Cell],
        arms: Sequence[str],
        settings: Settings,
        *,
        on_step: Callable[[float, str], None] = lambda _done, _text: None,
        on_report: Callable[[Report], None] = lambda _: None,
        earlier: Report | None = None,
        command: Sequence[str] | None = None,
    ) -> None:
        self._models = {model.name: model for model in models}
        self._cells, self._arms, self._settings = cells, arms, settings
        self._on_step, self._on_report = on_step, on_report
        self._started = 0  # cases of the current group
        self._done = 0.0  # the largest number of finished cases that was shown; a started case is a fraction
        self._command = command or WORKER
        self._toolchain = Toolchain(settings.time_limit)
        self._generators = {name: np.random.default_rng(settings.seed) for name in self._models}
        self._requested = {Case(arm, cell, is_twin).id for cell in cells for arm in arms for is_twin in (False, True)}
        self._records = {
            name: ModelRecord(model.checkpoint.digest, model.checkpoint.config.to_dict())
            for name, model in self._models.items()
        }
        self._earlier = EarlierResults(earlier, self._models, settings, self._requested)
        self.surroundings = Surroundings(environment(), load.MachineState.now(), asdict(settings))
        self._rooflines: dict[tuple[str, str, int], roofline.Roofline] = {}
        # Another environment may have another roofline.
        if earlier and earlier.surroundings.environment == self.surroundings.environment:
            self._rooflines = {(roof.dtype, roof.device, roof.threads): roof for roof in earlier.rooflines}
        self.results: list[Result] = []
        self.comparisons: list[Comparison] = []
        for case in self._earlier.unrequested():
            self._reuse(case)
        self._waiting = self._earlier.requested()

    def run(self) -> Report:
        """Measure the rooflines, and time every arm in every cell.

        After a ``KeyboardInterrupt``, ``report`` has what was measured so far.

        Raises:
            InputError: no cell fits its model.
            BenchError: no framework finds the device.
        """
        check_cells([(cell, self._models[cell.model]) for cell in self._cells], self._settings.seed)
        cells = [cell for cell in self._cells if self._has_work(cell)]
        places = sorted({(cell.dtype, cell.device, cell.threads) for cell in cells if not self._settings.quick})
        # Before the first case and after the last, because a slow moment does not show what the hardware can do.
        for place in places:
            self._measure_roofline(impls.installed(), *place)
            self._rooflines[place].check_device_found()
        self.time_cells()
        for place in places:
            self._measure_roofline(self._rooflines[place].fastest(), *place)
        return self.report()

    def report(self) -> Report:
        """Return the report so far, with the earlier results of cells that are not finished."""
        results, comparisons, others = list(self.results), list(self.comparisons), dict(self.surroundings.others)
        for case in self._waiting:
            if not self._has_result(case):
                results.append(self._earlier.results[case.id])
                comparisons += self._earlier.comparisons_to_keep(case)
                others.setdefault(case.cell.id, self._earlier.others.get(case.cell.id))
        order = list(self._models)
        results.sort(key=lambda result: order.index(result.case.cell.model))
        surroundings = replace(self.surroundings, others=others)
        return Report(self._records, surroundings, list(self._rooflines.values()), results, comparisons)

    def time_cells(self) -> None:
        """Time every arm in every cell. If an arm fails, its result records the failure."""
        with self._toolchain:
            for cell in self._cells:
                with tempfile.TemporaryDirectory(prefix="triglot-") as folder:
                    self._time_cell(cell, Path(folder))
                self._waiting = [case for case in self._waiting if case.cell != cell]

    def _measure_roofline(self, frameworks: Iterable[str], dtype: str, device: str, threads: int) -> None:
        """Measure these frameworks, and keep the best of this and earlier measurements."""
        self._show(f"roofline in {dtype}")
        measured = roofline.measure(list(frameworks), dtype, device, threads, self._settings)
        place = (dtype, device, threads)
        self._rooflines[place] = measured.combined_with(self._rooflines.get(place))

    def _show(self, text: str, rounds: float = 0.0) -> None:
        finished = sum(not result.case.is_twin and result.case.id in self._requested for result in self.results)
        # Starting a case takes about as long as the rounds of one process.
        processes = self._settings.processes
        done = finished + self._started * (1 + processes * rounds) / (1 + processes)
        self._done = max(self._done, done)  # steps after the last round report no rounds
        self._on_step(self._done, text)

    def _time_cell(self, cell: Cell, folder: Path) -> None:
        cases = self._cases_to_time(cell)
        if not cases:
            for arm in self._arms:  # a twin that failed has nothing to be timed beside
                if not self._has_result(twin := Case(arm, cell, is_twin=True)):
                    self._reuse(twin)
            return
        try:
            work = Work(self._models[cell.model], cell, self._settings, folder)
        except TriglotError as error:  # too long, the weights do not fit the dtype, or the disk is full
            for case in cases:
                self._skip(case, str(error))
        else:
            self._time(cases, work)

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

    def _time(self, cases: list[Case], work: Work) -> None:
        cell, before = work.cell, list(self.results)
        all_others = self.surroundings.others
        others = all_others.get(cell.id)  # while the reused results were timed
        reused = {result.case for result in before}
        earlier_baseline = self._earlier.baseline(cell, [result.case for result in before if result.status == "ok"])
        with Workers(work, self._settings, self._command, self._show, self._toolchain) as workers:
            for is_interrupted in self._groups(cases, earlier_baseline, workers):
                # After each group, so that an interrupted sweep loses little.
                now = workers.used_by_others()
                all_others[cell.id] = max(others, now or 0.0) if others else now
                self.surroundings.workers |= workers.environments
                new = [result for result in workers.results() if result.case not in reused]
                if is_interrupted:
                    new = [result for result in new if result.rounds or result.status != "ok"]
                for result in new:
                    result.digest = self._earlier.digest(result.case)
                self.results = before + new
                self._started = 0
                if is_interrupted:  # a file would keep the few rounds of this group when it is resumed
                    raise KeyboardInterrupt
                self._on_report(self.report())

    def _groups(self, cases: list[Case], earlier_baseline: Case | None, workers: Workers) -> Iterator[bool]:
        """Time the cases group by group. Yield after each group whether it was interrupted."""
        candidates = [earlier_baseline] if earlier_baseline is not None else []
        baseline: Case | None = None
        extra_time = ExtraTime()
        generator = self._generators[cases[0].cell.model]
        while cases:
            while (candidates or cases) and not workers.is_alive(baseline):
                baseline = (candidates or cases).pop(0)
                self._start(baseline, workers)
            if baseline is not None and workers.is_alive(baseline) and self._settings.again:
                twin = Case(baseline.arm, baseline.cell, is_twin=True)
                cases = [twin, *cases] if not self._has_result(twin) else cases
            size = group_size(workers.peak_mb(baseline), self._settings.together, load.available_mb())
            groups = max(1, ceil(len(cases) / size))
            group, cases = cases[:size], cases[size:]
            alive = [case for case in group if self._start(case, workers)]
            extra_seconds = partial(extra_time.share_of_group, len(workers.results()), len(cases), groups)
            outcome = take_turns(baseline, alive, workers, generator, extra_seconds)
            baseline = outcome.baseline
            self.comparisons += outcome.comparisons
            others = [case for case in alive if case != baseline]
            is_interrupted = outcome.is_interrupted
            # The baseline comes last: no arm may be compared with a process that has compiled other shapes.
            last = [] if baseline is None or cases else [baseline]
            try:
                workers.time_new_shapes([] if is_interrupted else [*others, *last])
            except KeyboardInterrupt:
                is_interrupted = True
            workers.close(others)
            yield is_interrupted

    def _start(self, case: Case, workers: Workers) -> bool:
        is_alive = workers.start(case)
        self._started += not case.is_twin
        return is_alive

    def _reuse(self, case: Case) -> None:
        """Take over the earlier result of a case, if there is one from the same conditions."""
        if self._earlier.is_reusable(case):
            self.results.append(self._earlier.results[case.id])
            self.comparisons += self._earlier.comparisons_to_keep(case)
            self.surroundings.others.setdefault(case.cell.id, self._earlier.others.get(case.cell.id))

    def _skip(self, case: Case, reason: str) -> None:
        self.results.append(Result(case, "skipped", reason, digest=self._earlier.digest(case)))

    def _has_result(self, case: Case) -> bool:
        return any(result.case == case for result in self.results)

    def _has_work(self, cell: Cell) -> bool:
        """Return whether a cell has an arm that can take part and has not been timed."""
        arms = [arm for arm in self._arms if not self._earlier.is_done(Case(arm, cell))]
        return any(self._why_unsupported(arm, cell) is None for arm in arms)

    def _why_unsupported(self, arm: str, cell: Cell) -> str | None:
        config = self._models[cell.model].checkpoint.config
        return ARMS[arm].why_unsupported(config, cell.workload, cell.dtype, cell.device)


def group_size(baseline_mb: float, most: int, available_mb: float = float("inf")) -> int:
    """Return how many workers may be alive beside the baseline. Others take up to 1.5 times its memory.

    ``available_mb`` is the free memory of the machine while the baseline is alive.
    """
    room = min(MEMORY_MB - baseline_mb, available_mb)
    return most if baseline_mb <= 0 else max(1, min(most, int(room / (1.5 * baseline_mb))))
