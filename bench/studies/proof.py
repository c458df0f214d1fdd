"""Prove that the benchmark measures what it says: ``make bench-proof``.

On an otherwise idle machine, 20 runs compare an arm with itself and with two slowed copies:

- against itself, the ratio must be within 3 %, and its interval must hold 1 (in 18 of 20 runs);
- an arm with a busy wait of a tenth must be seen as slower in every run, and the interval must hold 1.1 (18 of 20);
- an arm that computes eight times per call has few rounds, and its interval must hold 8 (18 of 20).

Then the proof measures what the harness adds to a sleep and to a matrix product. Finally it times three arms against
a plain loop with a clock of its own, in turns, for longer than a sweep, and compares the medians and the ratio. It
writes RESULT.json, and exits with code 1 if a promise is not kept.
"""

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import numpy as np
import typer

from triglot.bench.machine.load import MachineState
from triglot.bench.run import worker
from triglot.bench.run.arms import ARMS, TriglotArm, register
from triglot.bench.run.cases import Cell, Settings
from triglot.bench.run.sweep import WORKER, Sweep
from triglot.bench.run.work import BenchedModel
from triglot.shared import files
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.environment import cores, environment
from triglot.shared.model.initializers import initialize
from triglot.shared.model.recipes import recipe

BASELINE = "triglot-torch-eager"
CLOCKED = ("triglot-torch-eager", "triglot-paddle-eager", "triglot-jax-jit")
WITHIN, HELD, ADDED, CLOCK = 0.03, 18, 0.01, 0.05
WAITS, TIMES = 0.1, 8
TRUE_RATIOS = {"slowed": 1 + WAITS, "slow": TIMES}  # of the arms of these names to the baseline
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


class ClockedArm(TriglotArm):
    """An arm that is timed by ``plain_sample``."""


def register_arms() -> None:
    """Add the slowed and the clocked arms to those of the benchmark."""
    register("slowed", replace(ARMS[BASELINE], builder=f"{_MODULE}:WaitingArm"))
    register("slow", replace(ARMS[BASELINE], builder=f"{_MODULE}:RepeatingArm"))
    for name in CLOCKED:
        register(f"clocked-{name}", replace(ARMS[name], builder=f"{_MODULE}:ClockedArm"))


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
    runs: Annotated[int, typer.Option(min=1, help="Runs of the arm against itself.")] = 20,
) -> None:
    """Measure, and print which promises are kept."""
    target = results.with_suffix(".json") if results else None
    if target is not None:
        files.check_writable(target)
    register_arms()
    content: dict[str, Any] = {"schema": "triglot.bench-proof/1", "environment": environment()}
    content["machine"] = asdict(MachineState.now())
    content["runs"] = [_run(number) for number in range(runs)]
    matrix = np.random.default_rng(0).standard_normal((1024, 1024), np.float32)
    calls = {"sleep of 5 ms": lambda: time.sleep(0.005), "matrix product": lambda: matrix @ matrix}
    content["harness"] = {
        name: float(np.median([_harness_share(call) for _ in range(9)])) for name, call in calls.items()
    }
    content["clock"] = [_compare_clocks(arm) for arm in CLOCKED]
    content["promises"] = promises(content)
    if target is not None:
        with files.writing(target) as file:
            file.write(json.dumps(content, indent=1).encode() + b"\n")
    for name, (reached, kept) in content["promises"].items():
        print(f"{'kept' if kept else 'NOT KEPT'}: {name}: {reached}")  # noqa: T201
    raise typer.Exit(0 if all(kept for _, kept in content["promises"].values()) else 1)


def promises(content: dict[str, Any]) -> dict[str, tuple[str, bool]]:
    """Return for each promise what was reached, and whether it is kept."""
    runs = content["runs"]
    enough = len(runs) * HELD / 20
    near = sum(abs(run["again"][0] - 1) <= WITHIN for run in runs)
    seen = sum(run["slowed"][1] > 1 for run in runs)
    added = max(content["harness"].values())
    clock_ratios = [ratio for row in content["clock"] for ratio in (row["ratio"], row["bench_ms"] / row["clock_ms"])]
    worst = max(abs(ratio - 1) for ratio in clock_ratios)
    kept = {
        f"the same arm within {WITHIN:.0%}": (f"{near} of {len(runs)}", near == len(runs)),
        f"a busy wait of {WAITS:.0%} is seen": (f"{seen} of {len(runs)}", seen == len(runs)),
    }
    for arm, ratio in {"again": 1, **TRUE_RATIOS}.items():
        held = sum(run[arm][1] <= ratio <= run[arm][2] for run in runs)
        kept[f"its interval holds {ratio:g}"] = (f"{held} of {len(runs)}", held >= enough)
    kept[f"the harness adds under {ADDED:.0%}"] = (f"{added:.2%}", added < ADDED)
    kept[f"medians within {CLOCK:.0%} of an independent clock"] = (f"{worst:.1%}", worst <= CLOCK)
    return kept


def _run(number: int) -> dict[str, Any]:
    sweep = proof_sweep([BASELINE, *TRUE_RATIOS], Settings(seed=number), WORKER)
    ratios = {comparison.a.split("/")[0]: comparison.ratio for comparison in sweep.comparisons}
    arms = {"again": f"{BASELINE}*", **{arm: arm for arm in TRUE_RATIOS}}
    run: dict[str, Any] = {key: (ratios[arm].median, ratios[arm].low, ratios[arm].high) for key, arm in arms.items()}
    (run["others"],) = sweep.surroundings.others.values()
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


def plain_sample(prepared: Any, seconds: float, least: int) -> dict[str, Any]:
    """Time calls in a plain loop, with a clock that the harness does not use."""
    samples: list[float] = []
    while sum(samples) < 1000 * seconds or len(samples) < least:
        begin = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
        prepared.wait(prepared.call())
        samples.append((time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW) - begin) / 1e6)
    return {"samples_ms": samples, "device_ms": [], "processors_used": 0.0}


def clocked_worker() -> None:
    """Run a worker that times every ``ClockedArm`` with the plain loop."""
    harness_sample = worker.sample

    def sample(prepared: Any, device: Any, seconds: float, least: int) -> dict[str, Any]:
        if isinstance(prepared, ClockedArm):
            return plain_sample(prepared, seconds, least)
        return harness_sample(prepared, device, seconds, least)

    worker.sample = sample
    worker.main()


def _compare_clocks(arm: str) -> dict[str, Any]:
    """Time an arm with the benchmark, and in another process with the plain loop, in turns."""
    # Medians need more rounds than ratios on a machine whose speed varies.
    settings = Settings(seconds=10, rounds=120, again=False)
    command = (sys.executable, "-P", "-c", f"from {_MODULE} import clocked_worker; clocked_worker()")
    sweep = proof_sweep([arm, f"clocked-{arm}"], settings, command)
    bench, clock = (result.latency_ms.p50 if result.latency_ms else float("nan") for result in sweep.results)
    (ratio,) = [comparison.ratio for comparison in sweep.comparisons]
    inverse = {"ratio": 1 / ratio.median, "low": 1 / ratio.high, "high": 1 / ratio.low}
    return {"arm": arm, "bench_ms": bench, "clock_ms": clock, **inverse}


if __name__ == "__main__":
    typer.run(main)
