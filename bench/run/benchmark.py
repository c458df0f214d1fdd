"""Timing a model: what ``triglot bench`` does, as a function."""

import hashlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triglot import bench as bench_package
from triglot import impls, shared
from triglot.bench.machine import load as machine
from triglot.bench.machine import roofline
from triglot.bench.report import report
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.environment import environment
from triglot.shared.errors import BenchError

from .arms import ARMS
from .cases import Case, Cell
from .results import Known
from .settings import Settings
from .sweep import Sweep
from .toolchain import Toolchain
from .work import check_cells

WORKER = (sys.executable, "-P", "-m", "triglot.bench.run.worker")


@dataclass(frozen=True)
class BenchedModel:
    """A model to time: its name in the report, its weights, and its tokenizer file if it has one."""

    name: str
    checkpoint: Checkpoint
    tokenizer: Path | None


def bench(
    sources: Sequence[BenchedModel],
    cells: Sequence[Cell],
    arms: Sequence[str] | None = None,
    settings: Settings | None = None,
    *,
    on_step: Callable[[int, str], None] = lambda _done, _text: None,
    on_results: Callable[[dict[str, Any]], None] = lambda _: None,
    earlier: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Time every arm in every cell; the report, ``triglot.bench/1``. ``sources``: the models that the cells name.

    ``on_step`` is told how many cases are done and what is done now; ``on_results`` gets the report so far, whenever
    there is more. ``earlier`` is a report that is to be completed: what is in it is not timed again, if code, weights,
    environment and settings are the same. What is in it of the same models and not asked for now is kept.

    Raises:
        InputError: no cell fits its model.
        BenchError: ``earlier`` was measured in another way, or has a model more, so it cannot be completed.
    """
    settings = settings or Settings()
    by_name = {source.name: source for source in sources}
    check_cells(
        [(cell, by_name[cell.model].checkpoint, by_name[cell.model].tokenizer) for cell in cells], settings.seed
    )
    rooflines: dict[tuple[Any, ...], Any] = {}
    if earlier is not None:
        rooflines = {(one["dtype"], one["device"], one["threads"]): one for one in earlier["roofline"]}
    names = list(ARMS) if arms is None else list(arms)
    asked = {Case(arm, cell, copy).id for cell in cells for arm in names for copy in (0, 1)}
    surroundings = {**environment(), "machine": machine.state(), "settings": vars(settings)}
    known = report.known(earlier) if earlier is not None else Known()
    facts = {"code": code(), "environment": environment(), "settings": settings.measured_with()}
    toolchain = Toolchain(settings.time_limit)
    sweeps = {
        name: Sweep(
            source.checkpoint,
            names,
            settings,
            tokenizer=source.tokenizer,
            command=WORKER,
            on_step=lambda text: on_step(done(), text),
            on_results=lambda: on_results(found()),
            known=known.of(name),
            facts={**facts, "weights": source.checkpoint.digest},
            toolchain=toolchain,
        )
        for name, source in by_name.items()
    }

    if earlier is not None:
        _check_same(earlier, settings)
        if lost := [name for name in earlier["models"] if name not in by_name]:
            raise BenchError(
                f"the file to complete has {lost[0]}, which is not asked for; ask for it, or write another"
            )
        for sweep in sweeps.values():
            sweep.keep(asked)

    def done() -> int:
        return sum(
            not result.case.copy and result.case.id in asked for sweep in sweeps.values() for result in sweep.results
        )

    def found() -> dict[str, Any]:
        around: dict[str, Any] = {**surroundings, "workers": {}, "others": {}}
        for sweep in sweeps.values():
            around["workers"] |= sweep.environments
            around["others"] |= sweep.others
        models = {
            name: {"weights_digest": one.checkpoint.digest, "config": one.checkpoint.config.to_dict()}
            for name, one in by_name.items()
        }
        results = [result for sweep in sweeps.values() for result in sweep.results]
        comparisons = [comparison for sweep in sweeps.values() for comparison in sweep.comparisons]
        return report.to_dict(models, results, comparisons, list(rooflines.values()), around)

    # Before the first and after the last: a moment in which the machine is slow is not what it can do.
    new = [cell for cell in cells if sweeps[cell.model].times(cell)]
    moments = {(cell.dtype, cell.device, cell.threads) for cell in new}

    def measure(*, again: bool) -> None:
        for where in sorted(moments):
            on_step(done(), f"roofline in {where[0]}")
            frameworks = roofline.fastest(rooflines[where]) if again else impls.installed()
            measured = roofline.measure(frameworks, *where, settings)
            rooflines[where] = roofline.better(rooflines.get(where), measured)

    measure(again=False)
    for where in sorted(moments):
        check_device(where[1], rooflines[where])
    with toolchain:
        for cell in cells:
            sweeps[cell.model].run(cell)
    measure(again=True)
    return found()


def check_device(device: str, measured: Mapping[str, Any]) -> None:
    """Refuse a device that no framework finds, before every arm has been started to say so.

    ``measured``: what the hardware can do, as each framework found it.

    Raises:
        BenchError: names the frameworks.
    """
    asked = measured["frameworks"]
    if asked and all(found.get("missing") for found in asked.values()):
        raise BenchError(f"no {device} device is found by {', '.join(asked)}; choose --device cpu")


def _check_same(earlier: Mapping[str, Any], settings: Settings) -> None:
    """Refuse to complete what was measured in another way."""
    before, now = earlier["environment"].get("settings", {}), settings.measured_with()
    if wrong := [f"{name} {before.get(name)}, not {now[name]}" for name in now if before.get(name) != now[name]]:
        raise BenchError(f"the file to complete was measured with {', '.join(wrong)}; write another file")


def code() -> str:
    """A hash of what is run: the source of the implementations, of what they share, and of the benchmark."""
    hashed = hashlib.sha256()
    for package in (impls, shared, bench_package):
        for folder in package.__path__:
            for path in sorted(Path(folder).rglob("*.py")):
                hashed.update(path.read_bytes())
    return hashed.hexdigest()
