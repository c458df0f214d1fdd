"""Does the benchmark measure what it says? Run as ``make bench-proof``, or ``python -m triglot.bench.proof RESULT``.

Run after run, on an otherwise idle machine: the same arm against itself has to read within 3 %, its interval has to
hold 1 (18 times of 20), and an arm that waits busily for a tenth of its time has to be seen as slower every time. Then
what the harness adds to a known sleep and to a known matrix product; and the medians of three cases against a plain
loop with a clock of its own. Writes RESULT.json; exit code 1 where a promise is not kept.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from .. import impls
from ..shared import files
from ..shared.checkpoint import Checkpoint
from ..shared.config import ModelConfig
from ..shared.environment import cores, environment, thread_settings
from ..shared.initializers import initialize
from ..shared.recipes import recipe
from . import machine, ours, worker
from .cases import Case, Cell
from .sweep import ALLOCATORS, Settings, Sweep

# A sweep knows the arms of its table alone: in these workers, the second is the first with a busy wait behind it.
ARM, SLOWED = "triglot-torch-eager", "torch-nn"
WITHIN, HELD, SLOWER, ADDED, CLOCK = 0.03, 18, 0.1, 0.01, 0.05
COMMAND = (sys.executable, "-P", "-m", "triglot.bench.proof", "--worker")
TURNS = 7  # of the benchmark and the plain loop: the machine is another one from minute to minute
CLOCKED = ("triglot-torch-eager", "triglot-paddle-eager", "triglot-jax-jit")


def checkpoint() -> Checkpoint:
    """The model of the proof: MiniLM's sizes, two layers of them."""
    return Checkpoint(_config(), initialize(_config()))


def _config() -> ModelConfig:
    return replace(recipe("minilm"), layers=2)


def cell() -> Cell:
    """The work of the proof."""
    return Cell("minilm, 2 layers", "forward", "padded", "float32", "cpu", 8, 128, 1.0, cores())


class Slowed(ours.Ours):
    """The arm with a busy wait behind each call, of a tenth of what the call took."""

    def call(self) -> list[Any]:
        """Compute, then wait."""
        begin = time.perf_counter()
        result = super().call()
        self.wait(result)
        end = time.perf_counter() + SLOWER * (time.perf_counter() - begin)
        while time.perf_counter() < end:
            pass
        return result


def main(
    results: Annotated[Path | None, typer.Argument(help="What to write, without its ending, .json.")] = None,
    runs: Annotated[int, typer.Option(min=1)] = 20,
    as_worker: Annotated[bool, typer.Option("--worker", hidden=True)] = False,
    clock: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    """Prove it, and say what was found."""
    if as_worker:
        _work()
    elif clock is not None:
        print(json.dumps(_clock(clock)))  # noqa: T201
    else:
        _prove(results, runs)


def _work() -> None:
    build = worker.build

    def disguised(request: dict[str, Any]) -> Any:
        if request["case"]["arm"] == SLOWED:
            ours.prepare = Slowed
            case = {**request["case"], "arm": ARM, "id": request["case"]["id"].replace(SLOWED, ARM)}
            return build({**request, "case": case, "builder": "ours:prepare"})
        return build(request)

    worker.build = disguised
    worker.main()


def _prove(results: Path | None, runs: int) -> None:
    target = results.with_suffix(".json") if results else None
    if target is not None:
        files.check_target(target)
    content: dict[str, Any] = {"schema": "triglot.bench-proof/1", "environment": environment()}
    content["machine"] = machine.state()
    content["runs"] = [_run(number) for number in range(runs)]
    content["harness"] = _cost()
    content["clock"] = [_against_the_clock(arm) for arm in CLOCKED]
    content["promises"] = promises(content)
    if target is not None:
        with files.writing(target) as file:
            file.write(json.dumps(content, indent=1).encode() + b"\n")
    for name, (reached, kept) in content["promises"].items():
        print(f"{'kept' if kept else 'NOT KEPT'}: {name}: {reached}")  # noqa: T201
    raise typer.Exit(0 if all(kept for _, kept in content["promises"].values()) else 1)


def promises(found: dict[str, Any]) -> dict[str, tuple[str, bool]]:
    """Each promise, what was reached, and whether it is kept."""
    runs = found["runs"]
    near = sum(abs(run["again"][0] - 1) <= WITHIN for run in runs)
    held = sum(run["again"][1] <= 1 <= run["again"][2] for run in runs)
    seen = sum(run["slowed"][1] > 1 for run in runs)
    worst = max(abs(one["ratio"] - 1) for one in found["clock"])
    added = max(found["harness"].values())
    return {
        f"the same arm within {WITHIN:.0%}": (f"{near} of {len(runs)}", near == len(runs)),
        "its interval holds 1": (f"{held} of {len(runs)}", held >= len(runs) * HELD / 20),
        f"a busy wait of {SLOWER:.0%} is seen": (f"{seen} of {len(runs)}", seen == len(runs)),
        f"the harness adds under {ADDED:.0%}": (f"{added:.2%}", added < ADDED),
        f"medians within {CLOCK:.0%} of an independent clock": (f"{worst:.1%}", worst <= CLOCK),
    }


def _run(number: int) -> dict[str, Any]:
    settings = Settings(seed=number)
    sweep = Sweep(checkpoint(), [ARM, SLOWED], settings, tokenizer=None, command=COMMAND)
    sweep.run(cell())
    ratios = {one.a.split("/")[0]: one.ratio for one in sweep.comparisons}
    again, slowed = ratios[f"{ARM}*"], ratios[SLOWED]
    found = {
        "again": (again.median, again.low, again.high),
        "slowed": (slowed.median, slowed.low, slowed.high),
        "others": sweep.others[cell().id],
    }
    print(number, found, file=sys.stderr)  # noqa: T201
    return found


def _cost() -> dict[str, float]:
    """What the loop that takes samples adds to a call, as a share of it: a sleep, and a matrix product."""
    matrix = np.random.default_rng(0).standard_normal((1024, 1024)).astype(np.float32)
    found: dict[str, float] = {}
    for name, call in (("sleep of 5 ms", lambda: time.sleep(0.005)), ("matrix product", lambda: matrix @ matrix)):
        shares: list[float] = []
        for _ in range(9):
            timed = _Timed(call)
            samples: list[float] = worker.sample(timed, None, 0.3, 10)["samples_ms"]
            shares.append(sum(samples) / sum(timed.own) - 1)
        found[name] = float(np.median(shares))
    return found


class _Timed:
    """A call that knows how long it took, in milliseconds."""

    def __init__(self, compute: Callable[[], Any]) -> None:
        self.compute = compute
        self.own: list[float] = []

    def call(self) -> None:
        """Compute, and note the time."""
        begin = time.perf_counter_ns()
        self.compute()
        self.own.append((time.perf_counter_ns() - begin) / 1e6)

    def wait(self, results: Any) -> None:
        """Nothing: it is done."""

    def outputs(self, results: Any) -> dict[str, Any]:
        """Nothing."""
        return {}


def _against_the_clock(arm: str) -> dict[str, Any]:
    """The medians of the benchmark, and those of a plain loop in a process of its own, in turns, and their ratio."""
    bench: list[float] = []
    plain: list[float] = []
    for seed in range(TURNS):
        settings = Settings(seconds=1, rounds=12, seed=seed, again=False)
        sweep = Sweep(checkpoint(), [arm], settings, tokenizer=None, command=COMMAND)
        sweep.run(cell())
        bench.append(sweep.results[0].facts["latency_ms"]["p50"])
        command = [*COMMAND[:-1], "--clock", arm]
        variables = {**thread_settings(cores()), **ALLOCATORS["keep"]}
        result = subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, **variables})
        plain.append(json.loads(result.stdout.splitlines()[-1]))
    return {"arm": arm, "bench_ms": bench, "clock_ms": plain, "ratio": float(np.median(np.divide(bench, plain)))}


def _clock(arm: str) -> float:
    """The median of ten calls in milliseconds, by another clock than the harness's, without the harness."""
    from .arms import ARMS  # noqa: PLC0415
    from .workloads import batches_of  # noqa: PLC0415

    case = Case(arm, cell())
    model = impls.build(ARMS[arm].framework, checkpoint(), mode=ARMS[arm].mode)
    call = model.prepare("forward", batches_of(case.cell, _config(), None, 0)[0])
    for _ in range(10):
        model.wait(call())
    taken: list[float] = []
    for _ in range(30):
        begin = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
        model.wait(call())
        taken.append((time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW) - begin) / 1e6)
    return float(np.median(taken))


if __name__ == "__main__":
    typer.run(main)
