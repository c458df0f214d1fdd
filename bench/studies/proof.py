"""Prove that the benchmark measures what it says: ``make bench-proof``.

On an otherwise idle machine, 20 runs compare an arm with itself and with two slowed copies: ten with freed memory kept
(``--allocator keep``), and ten with the default allocator, with which two processes of this arm can differ by a fifth.
In nine of each ten,

- the interval of the arm against itself must contain 1;
- the interval of an arm with a busy wait of a tenth must contain 1.1;
- the interval of an arm that computes eight times per call must contain 8.

With freed memory kept, the arm must also be within 3% of itself, and the busy wait must be seen, in every run.

Then the proof measures what the harness adds to a sleep and to a matrix product. Finally it times every installed arm
against a plain script (see ``plain_comparison.py``): MiniLM, batch 1, length 32, and batch 8, length 128. It writes
RESULT.json as it goes, and exits with code 1 if a promise is not kept. ``--runs 0`` leaves out everything but the plain
scripts, and ``--arm`` selects arms.
"""

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, astuple, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import numpy as np
import typer

from triglot.bench.machine.load import MachineState
from triglot.bench.run import worker
from triglot.bench.run.arms import ARMS, TriglotArm, register, select
from triglot.bench.run.cases import Cell, Settings
from triglot.bench.run.sweep import WORKER, Sweep
from triglot.bench.run.work import BenchedModel
from triglot.shared import files
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.environment import cores, environment
from triglot.shared.errors import FrameworkError
from triglot.shared.model.initializers import initialize
from triglot.shared.model.recipes import recipe

from .plain_comparison import LIMIT, compare_with_plain

BASELINE = "triglot-torch-eager"
WITHIN, HELD, ADDED = 0.03, 0.9, 0.01
SIZES = ((1, 32), (8, 128))  # rows and length of the calls that are compared with a plain script
WAITS, TIMES = 0.1, 8
TRUE_RATIOS = {"slowed": 1 + WAITS, "slow": TIMES}  # of the arms of these names to the baseline
ALLOCATORS = {"keep": "freed memory kept", "default": "default allocator"}
_MODULE = "triglot.bench.studies.proof"


class WaitingArm(TriglotArm):
    """The baseline with a busy wait after each call, a tenth as long as the call."""

    def call(self) -> list[Any]:
        """Compute, then wait."""
        begin = time.perf_counter()
        result = super().call()
        self.wait(result)
        end = time.perf_counter() + WAITS * (time.perf_counter() - begin)
        while time.perf_counter() < end:
            pass
        return result


class RepeatingArm(TriglotArm):
    """The baseline, computing eight times per call. A busy wait of that length would slow down the next call."""

    def call(self) -> list[Any]:
        """Compute eight times."""
        for _ in range(TIMES - 1):
            self.wait(super().call())
        return super().call()


def register_arms() -> None:
    """Add the slowed arms to those of the benchmark."""
    register("slowed", replace(ARMS[BASELINE], builder=f"{_MODULE}:WaitingArm"))
    register("slow", replace(ARMS[BASELINE], builder=f"{_MODULE}:RepeatingArm"))


def proof_sweep(arms: list[str], settings: Settings, command: Sequence[str]) -> Sweep:
    """Time arms with two layers of the size of MiniLM's."""
    config = replace(recipe("minilm"), layers=2)
    model = BenchedModel("minilm, 2 layers", Checkpoint(config, initialize(config)))
    cell = Cell(model.name, "forward", "padded", "float32", "cpu", 8, 128, 1.0, cores())
    sweep = Sweep([model], [cell], arms, settings, command=command)
    sweep.time_cells()
    return sweep


def main(
    results: Annotated[Path | None, typer.Argument(help="File to write, without its ending .json.")] = None,
    runs: Annotated[
        int, typer.Option(min=0, help="Runs of the arm against itself, half of them with each allocator.")
    ] = 20,
    arm: Annotated[
        list[str] | None, typer.Option(help="Compare this arm with a plain script. Default: all installed.")
    ] = None,
) -> None:
    """Measure, and print which promises are kept."""
    target = results.with_suffix(".json") if results else None
    if target is not None:
        files.check_writable(target)
    # With --arm, every named arm has to run. Without it, arms that are not installed are left out.
    arms = select([], [], arm or [])
    arms = [
        name for name in arms if arm or not ARMS[name].why_unsupported(recipe("minilm"), "forward", "float32", "cpu")
    ]
    if not arms:
        raise FrameworkError("no arm is installed; install triglot[torch], triglot[paddle] or triglot[jax]")
    register_arms()
    content: dict[str, Any] = {"schema": "triglot.bench-proof/1", "environment": environment()}
    content |= {"machine": asdict(MachineState.now()), "runs": [], "harness": {}, "plain": [], "promises": {}}
    for number in range(runs):
        content["runs"].append(_run(number))
        _write(content, target)
    if runs:
        matrix = np.random.default_rng(0).standard_normal((1024, 1024), np.float32)
        calls = {"sleep of 5 ms": lambda: time.sleep(0.005), "matrix product": lambda: matrix @ matrix}
        for name, call in calls.items():
            content["harness"][name] = float(np.median([_harness_share(call) for _ in range(9)]))
    for rows, length in SIZES:
        for row in compare_with_plain(arms, rows, length):
            content["plain"].append(row)
            _write(content, target)
    content["promises"] = promises(content)
    _write(content, target)
    for name, (reached, kept) in content["promises"].items():
        print(f"{'kept' if kept else 'NOT KEPT'}: {name}: {reached}")  # noqa: T201
    raise typer.Exit(0 if all(kept for _, kept in content["promises"].values()) else 1)


def _write(content: dict[str, Any], target: Path | None) -> None:
    if target is not None:
        with files.writing(target) as file:
            file.write(json.dumps(content, indent=1).encode() + b"\n")


def promises(content: dict[str, Any]) -> dict[str, tuple[str, bool]]:
    """Return for each promise what was reached, and whether it is kept. What was not measured has no promise."""
    return (_promises_of_runs(content) if content["runs"] else {}) | _promises_of_plain(content.get("plain", ()))


def _promises_of_runs(content: dict[str, Any]) -> dict[str, tuple[str, bool]]:
    runs = content["runs"]
    kept: dict[str, tuple[str, bool]] = {}
    for allocator, name in ALLOCATORS.items():
        ours = [run for run in runs if run["allocator"] == allocator]
        for arm, ratio in {"again": 1, **TRUE_RATIOS}.items():
            held = sum(run[arm] is not None and run[arm][1] <= ratio <= run[arm][2] for run in ours)
            kept[f"{name}, its interval holds {ratio:g}"] = (f"{held} of {len(ours)}", held >= HELD * len(ours))
        if allocator == "keep":
            near = sum(run["again"] is not None and abs(run["again"][0] - 1) <= WITHIN for run in ours)
            seen = sum(run["slowed"] is not None and run["slowed"][1] > 1 for run in ours)
            kept[f"{name}, the same arm within {WITHIN:.0%}"] = (f"{near} of {len(ours)}", near == len(ours))
            kept[f"{name}, a busy wait of {WAITS:.0%} is seen"] = (f"{seen} of {len(ours)}", seen == len(ours))
    added = max(content["harness"].values())
    kept[f"the harness adds under {ADDED:.0%}"] = (f"{added:.2%}", added < ADDED)
    return kept


def _promises_of_plain(rows: Sequence[dict[str, Any]]) -> dict[str, tuple[str, bool]]:
    kept: dict[str, tuple[str, bool]] = {}
    for size in dict.fromkeys((row["rows"], row["length"]) for row in rows):
        ratios = {row["arm"]: row["ratio"] for row in rows if (row["rows"], row["length"]) == size}
        off = {arm: np.inf if ratio is None else ratio - 1 for arm, ratio in ratios.items()}  # None if it failed
        worst = max(off, key=lambda arm: abs(off[arm]))
        near = sum(abs(value) <= LIMIT for value in off.values())
        reached = f"{near} of {len(off)}, {worst} " + (f"{off[worst]:+.1%}" if np.isfinite(off[worst]) else "failed")
        kept[f"within {LIMIT:.0%} of a plain script, {size[0]} x {size[1]}"] = (reached, near == len(ratios))
    return kept


def _run(number: int) -> dict[str, Any]:
    allocator = list(ALLOCATORS)[number % 2]
    sweep = proof_sweep([BASELINE, *TRUE_RATIOS], Settings(seed=number, allocator=allocator), WORKER)
    ratios = {comparison.a.split("/")[0]: comparison.ratio for comparison in sweep.comparisons}
    run: dict[str, Any] = {"allocator": allocator}
    for name, arm in {"again": f"{BASELINE}*", **{arm: arm for arm in TRUE_RATIOS}}.items():
        run[name] = astuple(ratios[arm]) if arm in ratios else None  # None if an arm failed
    (run["others"],) = sweep.surroundings.others.values()
    run["processes"] = max((result.processes[-1] + 1 for result in sweep.results if result.processes), default=0)
    print(number, run, file=sys.stderr)  # noqa: T201
    return run


def _harness_share(compute: Callable[[], Any]) -> float:
    """Return what the loop that takes samples adds to a call, as a share of it."""
    milliseconds: list[float] = []

    def call() -> None:
        begin = time.perf_counter_ns()
        compute()
        milliseconds.append((time.perf_counter_ns() - begin) / 1e6)

    prepared: Any = SimpleNamespace(call=call, wait=id)  # the results are finished
    return sum(worker.sample(prepared, None, 0.3, 10)["samples_ms"]) / sum(milliseconds) - 1


if __name__ == "__main__":
    typer.run(main)
