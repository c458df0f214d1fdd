"""Timing a model: what ``triglot bench`` does, as a function."""

import sys
from collections.abc import Callable, Sequence
from typing import Any

from triglot import impls
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
    on_cell: Callable[[dict[str, Any]], None] = lambda _: None,
) -> dict[str, Any]:
    """Time every arm in every cell; the report, ``triglot.bench/1``.

    ``on_step`` is told how many cells are done and what is done now; ``on_cell`` gets the report so far.

    Raises:
        InputError: a cell does not fit the model.
    """
    settings = settings or Settings()
    check_cells(cells, source.checkpoint, source.tokenizer, settings.seed)
    names = list(ARMS) if arms is None else list(arms)
    begun = {"machine": machine.state()}
    rooflines: dict[str, Any] = {}
    sweep = Sweep(
        source.checkpoint, names, settings, tokenizer=source.tokenizer, command=WORKER,
        on_step=lambda text: on_step(done, text),
    )  # fmt: skip
    found: dict[str, Any] = {}
    for done, cell in enumerate(cells):
        if cell.dtype not in rooflines:
            on_step(done, f"measuring what the hardware can do in {cell.dtype}")
            rooflines[cell.dtype] = roofline.measure(impls.installed(), cell.dtype, cell.device, cell.threads)
        sweep.run(cell)
        surroundings = {
            **environment(),
            **begun,
            "workers": sweep.environments,
            "others": sweep.others,
            "settings": vars(settings),
        }
        found = report.to_dict(
            source.name, source.checkpoint.digest, sweep.results, sweep.comparisons, rooflines, surroundings
        )
        on_cell(found)
    return found
