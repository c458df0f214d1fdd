"""Prove that the benchmark measures what it says: ``make bench-proof``.

Run after run, on an otherwise idle machine: the same arm against itself has to read within 3 %, its interval has to
hold 1 (18 times of 20), and an arm that waits busily for a tenth of its time has to be seen as slower every time, by an
interval that holds 1.1 (18 times of 20); one that computes eight times in a call takes part in few rounds, and its
interval has to hold 8 as often. Then what the harness adds to a known sleep and to a known matrix product; and
three cases against a plain loop with a clock of its own, in turns, for longer than a sweep: both medians, and the ratio
of the rounds. Writes RESULT.json; exit code 1 where a promise is not kept.
"""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from triglot.bench.machine import load as machine
from triglot.bench.run import triglot_arm as ours
from triglot.bench.run import worker
from triglot.bench.run.cases import Cell
from triglot.bench.run.settings import Settings
from triglot.bench.run.sweep import Sweep
from triglot.shared import files
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.environment import cores, environment
from triglot.shared.model.config import ModelConfig
from triglot.shared.model.initializers import initialize
from triglot.shared.model.recipes import recipe

# A sweep knows the arms of its table alone: in these workers, two others are the first, made slower.
ARM, SLOWED, SLOW = "triglot-torch-eager", "torch-nn", "paddle-nn"
WITHIN, HELD, ADDED, CLOCK = 0.03, 18, 0.01, 0.05
WAITS, TIMES = 0.1, 8
TRUE = {SLOWED: 1 + WAITS, SLOW: TIMES}  # how many times as long as the first they take
_NAMES = {"slowed": SLOWED, "slow": SLOW}  # in the result
COMMAND = (sys.executable, "-P", "-m", "triglot.bench.studies.proof", "--worker")
PLAIN = "transformers-eager"  # stands for another arm, timed by a loop and a clock of its own
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
        end = time.perf_counter() + WAITS * (time.perf_counter() - begin)
        while time.perf_counter() < end:
            pass
        return result


class Slow(ours.Ours):
    """The arm, computing eight times in a call. After a wait of that length it would compute more slowly."""

    def call(self) -> list[Any]:
        """Compute, and again."""
        for _ in range(TIMES - 1):
            self.wait(super().call())
        return super().call()


def main(
    results: Annotated[Path | None, typer.Argument(help="What to write, without its ending, .json.")] = None,
    runs: Annotated[int, typer.Option(min=1)] = 20,
    as_worker: Annotated[bool, typer.Option("--worker", hidden=True)] = False,
    clock: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    """Prove it, and say what was found."""
    if as_worker:
        _work(clock)
    else:
        _prove(results, runs)


def _work(clocked: str | None) -> None:
    build = worker.build

    def disguised(request: dict[str, Any]) -> Any:
        arm = request["case"]["arm"]
        if arm in TRUE:
            ours.prepare = {SLOWED: Slowed, SLOW: Slow}[arm]
        if arm == PLAIN:
            worker.sample = plain
        if real := {SLOWED: ARM, SLOW: ARM, PLAIN: clocked}.get(arm):
            case = {**request["case"], "arm": real, "id": request["case"]["id"].replace(arm, real)}
            return build({**request, "case": case, "builder": "triglot.bench.run.triglot_arm:prepare"})
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
    right = {arm: sum(run[arm][1] <= TRUE[name] <= run[arm][2] for run in runs) for arm, name in _NAMES.items()}
    worst = max(abs(value - 1) for one in found["clock"] for value in (one["ratio"], one["bench_ms"] / one["clock_ms"]))
    added = max(found["harness"].values())
    return {
        f"the same arm within {WITHIN:.0%}": (f"{near} of {len(runs)}", near == len(runs)),
        "its interval holds 1": (f"{held} of {len(runs)}", held >= len(runs) * HELD / 20),
        f"a busy wait of {WAITS:.0%} is seen": (f"{seen} of {len(runs)}", seen == len(runs)),
        **{
            f"its interval holds {TRUE[name]:g}": (
                f"{right[arm]} of {len(runs)}",
                right[arm] >= len(runs) * HELD / 20,
            )
            for arm, name in _NAMES.items()
        },
        f"the harness adds under {ADDED:.0%}": (f"{added:.2%}", added < ADDED),
        f"medians within {CLOCK:.0%} of an independent clock": (f"{worst:.1%}", worst <= CLOCK),
    }


def _run(number: int) -> dict[str, Any]:
    settings = Settings(seed=number)
    sweep = Sweep(checkpoint(), [ARM, SLOWED, SLOW], settings, tokenizer=None, command=COMMAND)
    sweep.run(cell())
    ratios = {one.a.split("/")[0]: one.ratio for one in sweep.comparisons}
    arms = {"again": f"{ARM}*", **_NAMES}
    found: dict[str, Any] = {key: (ratios[arm].median, ratios[arm].low, ratios[arm].high) for key, arm in arms.items()}
    found["others"] = sweep.others[cell().id]
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


def plain(prepared: Any, _: Any, seconds: float, least: int) -> dict[str, Any]:
    """In the place of ``worker.sample``: as anybody would time a call, by another clock."""
    taken: list[float] = []
    while sum(taken) < 1000 * seconds or len(taken) < least:
        begin = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
        prepared.wait(prepared.call())
        taken.append((time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW) - begin) / 1e6)
    return {"samples_ms": taken, "device_ms": [], "processors_used": 0.0}


def _against_the_clock(arm: str) -> dict[str, Any]:
    """An arm by the benchmark, and the same in another process by a plain loop, in turns; their medians and ratio."""
    # Enough rounds for the medians of both on a machine whose speed varies; the ratio, round by round, takes fewer.
    settings = Settings(seconds=10, rounds=120, again=False)
    sweep = Sweep(checkpoint(), [arm, PLAIN], settings, tokenizer=None, command=(*COMMAND, "--clock", arm))
    sweep.run(cell())
    bench, clock = (one.facts["latency_ms"]["p50"] for one in sweep.results)
    (ratio,) = [one.ratio for one in sweep.comparisons]
    found = {"arm": arm, "bench_ms": bench, "clock_ms": clock}
    return {**found, "ratio": 1 / ratio.median, "low": 1 / ratio.high, "high": 1 / ratio.low}


if __name__ == "__main__":
    typer.run(main)
