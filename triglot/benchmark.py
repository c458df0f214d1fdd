"""Timing a model: what ``triglot bench`` does, as a function."""

import hashlib
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from triglot import bench as bench_package
from triglot import impls, shared
from triglot.bench import machine, report, roofline
from triglot.bench.arms import ARMS
from triglot.bench.cases import Cell
from triglot.bench.sweep import Settings, Sweep, check_cells
from triglot.models import Source
from triglot.shared.environment import environment

WORKER = (sys.executable, "-P", "-m", "triglot.bench.worker")


def bench(
    source: Source,
    cells: Sequence[Cell],
    arms: Sequence[str] | None = None,
    settings: Settings | None = None,
    *,
    on_step: Callable[[int, str], None] = lambda *_: None,
    on_results: Callable[[dict[str, Any]], None] = lambda _: None,
    earlier: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Time every arm in every cell; the report, ``triglot.bench/1``.

    ``on_step`` is told how many cases are done and what is done now; ``on_results`` gets the report so far, whenever
    there is more. ``earlier`` is a report that is to be completed: what is in it is not timed again, if code, weights,
    environment and settings are the same.

    Raises:
        InputError: a cell does not fit the model.
    """
    settings = settings or Settings()
    check_cells(cells, source.checkpoint, source.tokenizer, settings.seed)
    rooflines: dict[str, Any] = {}
    surroundings = {**environment(), "machine": machine.state(), "settings": vars(settings)}
    sweep = Sweep(
        source.checkpoint,
        list(ARMS) if arms is None else list(arms),
        settings,
        tokenizer=source.tokenizer,
        command=WORKER,
        on_step=lambda text: on_step(done(), text),
        on_results=lambda: on_results(found()),
        known=report.known(earlier) if earlier else None,
        facts={
            "code": code(),
            "weights": source.checkpoint.digest,
            "environment": environment(),
            "settings": vars(settings),
        },
    )

    def done() -> int:
        return sum(not result.case.copy for result in sweep.results)

    def found() -> dict[str, Any]:
        around = {**surroundings, "workers": sweep.environments, "others": sweep.others}
        digest = source.checkpoint.digest
        return report.to_dict(source.name, digest, sweep.results, sweep.comparisons, rooflines, around)

    for cell in cells:
        if cell.dtype not in rooflines:
            on_step(done(), f"measuring what the hardware can do in {cell.dtype}")
            rooflines[cell.dtype] = roofline.measure(impls.installed(), cell.dtype, cell.device, cell.threads)
        sweep.run(cell)
    return found()


def code() -> str:
    """A hash of what is run: the source of the implementations, of what they share, and of the benchmark."""
    hashed = hashlib.sha256()
    for package in (impls, shared, bench_package):
        for folder in package.__path__:
            for path in sorted(Path(folder).rglob("*.py")):
                hashed.update(path.read_bytes())
    return hashed.hexdigest()
