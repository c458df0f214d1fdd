"""The whole benchmark of ``triglot bench``: rooflines before and after, and a sweep for each model in between."""

import hashlib
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from triglot import bench as bench_package
from triglot import impls, parity, shared
from triglot.bench.machine import roofline
from triglot.bench.machine.load import MachineState
from triglot.bench.machine.roofline import Roofline
from triglot.bench.report.report import ModelRecord, Report, Surroundings
from triglot.shared.environment import environment
from triglot.shared.errors import BenchError

from .arms import ARMS
from .cases import Case, Cell
from .resume import EarlierResults, check_resumable
from .settings import Settings
from .sweep import Sweep
from .toolchain import Toolchain
from .work import BenchedModel, check_cells

WORKER = (sys.executable, "-P", "-m", "triglot.bench.run.worker")


def bench(
    models: Sequence[BenchedModel],
    cells: Sequence[Cell],
    arms: Sequence[str] | None = None,
    settings: Settings | None = None,
    *,
    on_step: Callable[[int, str], None] = lambda _done, _text: None,
    on_report: Callable[[Report], None] = lambda _: None,
    earlier: Report | None = None,
) -> Report:
    """Time every arm in every cell of ``models``.

    ``on_step`` receives the number of finished cases and a description of the current step. ``on_report`` receives the
    report so far, whenever it has grown. ``earlier`` is a report to complete: its results are not timed again if code,
    weights, environment and settings are the same, and results that are not asked for now stay in it.

    Raises:
        InputError: no cell fits its model.
        BenchError: ``earlier`` cannot be completed, or no framework finds the device.
    """
    settings = settings or Settings()
    arms = list(ARMS) if arms is None else list(arms)
    by_name = {model.name: model for model in models}
    check_cells([(cell, by_name[cell.model]) for cell in cells], settings.seed)
    if earlier is not None:
        check_resumable(earlier, by_name, settings)
    run = _Run(by_name, cells, arms, settings, earlier, on_step, on_report)
    places = run.places_to_measure()
    # Before the first case and after the last, because a slow moment does not show what the hardware can do.
    for place in places:
        run.measure_roofline(impls.installed(), *place)
        check_device_found(run.rooflines[place])
    with run.toolchain:
        for cell in cells:
            run.sweeps[cell.model].run(cell)
    for place in places:
        run.measure_roofline(run.rooflines[place].fastest(), *place)
    return run.report()


class _Run:
    """The state of a benchmark: a sweep for each model, and the rooflines by dtype, device and threads."""

    def __init__(
        self,
        models: dict[str, BenchedModel],
        cells: Sequence[Cell],
        arms: Sequence[str],
        settings: Settings,
        earlier: Report | None,
        on_step: Callable[[int, str], None],
        on_report: Callable[[Report], None],
    ) -> None:
        self._models, self._cells, self._settings, self._on_step = models, cells, settings, on_step
        self._surroundings = Surroundings(environment(), MachineState.now(), vars(settings))
        self.rooflines: dict[tuple[str, str, int], Roofline] = {}
        if earlier is not None:
            self.rooflines = {(roof.dtype, roof.device, roof.threads): roof for roof in earlier.rooflines}
        self._requested = {Case(arm, cell, is_twin).id for cell in cells for arm in arms for is_twin in (False, True)}
        self.toolchain = Toolchain(settings.time_limit)
        facts = {"code": hash_of_code(), "environment": environment(), "settings": settings.affecting_results()}
        self.sweeps: dict[str, Sweep] = {}
        for name, model in models.items():
            model_facts: dict[str, Any] = {**facts, "weights": model.checkpoint.digest}
            self.sweeps[name] = Sweep(
                model,
                arms,
                settings,
                command=WORKER,
                on_step=self._show,
                on_results=lambda: on_report(self.report()),
                earlier=EarlierResults(earlier, name, model_facts, self._requested),
                facts=model_facts,
                toolchain=self.toolchain,
            )
            self.sweeps[name].reuse_unrequested()

    def places_to_measure(self) -> list[tuple[str, str, int]]:
        """Return dtype, device and threads of the cells that have to be timed."""
        new = [cell for cell in self._cells if self.sweeps[cell.model].has_work(cell)]
        return sorted({(cell.dtype, cell.device, cell.threads) for cell in new})

    def measure_roofline(self, frameworks: Iterable[str], dtype: str, device: str, threads: int) -> None:
        """Measure these frameworks, and keep the best of this and earlier measurements."""
        self._show(f"roofline in {dtype}")
        measured = roofline.measure(list(frameworks), dtype, device, threads, self._settings)
        place = (dtype, device, threads)
        self.rooflines[place] = measured.combined_with(self.rooflines.get(place))

    def report(self) -> Report:
        """Return the report so far."""
        sweeps = self.sweeps.values()
        for sweep in sweeps:
            self._surroundings.workers |= sweep.environments
            self._surroundings.others |= sweep.others
        return Report(
            {
                name: ModelRecord(model.checkpoint.digest, model.checkpoint.config.to_dict())
                for name, model in self._models.items()
            },
            self._surroundings,
            list(self.rooflines.values()),
            [result for sweep in sweeps for result in sweep.results],
            [comparison for sweep in sweeps for comparison in sweep.comparisons],
        )

    def _show(self, text: str) -> None:
        results = [result for sweep in self.sweeps.values() for result in sweep.results]
        done = sum(not result.case.is_twin and result.case.id in self._requested for result in results)
        self._on_step(done, text)


def check_device_found(measured: Roofline) -> None:
    """Refuse a device that no framework finds, before every arm is started only to fail.

    Raises:
        BenchError: no framework finds the device.
    """
    frameworks = measured.frameworks
    if frameworks and all(speed.missing for speed in frameworks.values()):
        raise BenchError(f"{', '.join(frameworks)} find no {measured.device} device; choose --device cpu")


def hash_of_code() -> str:
    """Return a hash of the source that results depend on: implementations, shared code, parity and benchmark."""
    digest = hashlib.sha256()
    for package in (impls, shared, parity, bench_package):
        for folder in package.__path__:
            for path in sorted(Path(folder).rglob("*.py")):
                digest.update(path.read_bytes())
    return digest.hexdigest()
