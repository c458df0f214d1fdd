"""Prove that the benchmark measures what it says: ``make bench-proof``.

On an otherwise idle machine, 20 runs compare an arm with itself and with two slowed copies:

- against itself, the ratio must be within 3 %, and its interval must hold 1 (in 18 of 20 runs);
- an arm with a busy wait of a tenth must be seen as slower in every run, and the interval must hold 1.1 (18 of 20);
- an arm that computes eight times per call has few rounds, and its interval must hold 8 (18 of 20).

Then the proof measures what the harness adds to a sleep and to a matrix product. Finally it times every arm against a
plain script (``plain.py``) in a process of its own, without any setting of the benchmark, in turns: MiniLM, batch 1,
length 32, and batch 8, length 128. It writes RESULT.json, and exits with code 1 if a promise is not kept. ``--runs 0``
leaves out everything but the plain scripts, and ``--arm`` selects arms.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Annotated, Any

import numpy as np
import typer

from triglot.bench.machine.load import MachineState
from triglot.bench.report.report import Result
from triglot.bench.run import worker
from triglot.bench.run.arms import ARMS, TriglotArm, register, select
from triglot.bench.run.cases import Case, Cell, Settings
from triglot.bench.run.pool import Workers
from triglot.bench.run.sweep import WORKER, Sweep
from triglot.bench.run.toolchain import Toolchain
from triglot.bench.run.work import BenchedModel, Work
from triglot.shared import files
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.environment import cores, environment
from triglot.shared.model.initializers import initialize
from triglot.shared.model.recipes import recipe

from .plain import MEDIAN

BASELINE = "triglot-torch-eager"
WITHIN, HELD, ADDED, PLAIN = 0.03, 18, 0.01, 0.05
SIZES = ((1, 32), (8, 128))  # rows and length of the calls that are compared with a plain script
ROUNDS, TOGETHER = 24, 3
SPIN = 0.3  # seconds in which the idle threads of a plain script fall asleep
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
    runs: Annotated[int, typer.Option(min=0, help="Runs of the arm against itself.")] = 20,
    arm: Annotated[list[str] | None, typer.Option(help="Compare this arm with a plain script. Default: all.")] = None,
) -> None:
    """Measure, and print which promises are kept."""
    target = results.with_suffix(".json") if results else None
    if target is not None:
        files.check_writable(target)
    arms = select([], [], arm or [])
    register_arms()
    content: dict[str, Any] = {"schema": "triglot.bench-proof/1", "environment": environment()}
    content["machine"] = asdict(MachineState.now())
    content["runs"] = [_run(number) for number in range(runs)]
    matrix = np.random.default_rng(0).standard_normal((1024, 1024), np.float32)
    calls = {"sleep of 5 ms": lambda: time.sleep(0.005), "matrix product": lambda: matrix @ matrix} if runs else {}
    content["harness"] = {
        name: float(np.median([_harness_share(call) for _ in range(9)])) for name, call in calls.items()
    }
    content["plain"] = [row for rows, length in SIZES for row in compare_with_plain(arms, rows, length)]
    content["promises"] = promises(content)
    if target is not None:
        with files.writing(target) as file:
            file.write(json.dumps(content, indent=1).encode() + b"\n")
    for name, (reached, kept) in content["promises"].items():
        print(f"{'kept' if kept else 'NOT KEPT'}: {name}: {reached}")  # noqa: T201
    raise typer.Exit(0 if all(kept for _, kept in content["promises"].values()) else 1)


def promises(content: dict[str, Any]) -> dict[str, tuple[str, bool]]:
    """Return for each promise what was reached, and whether it is kept. What was not measured has no promise."""
    return (_promises_of_runs(content) if content["runs"] else {}) | _promises_of_plain(content.get("plain", ()))


def _promises_of_runs(content: dict[str, Any]) -> dict[str, tuple[str, bool]]:
    runs = content["runs"]
    enough = len(runs) * HELD / 20
    near = sum(abs(run["again"][0] - 1) <= WITHIN for run in runs)
    seen = sum(run["slowed"][1] > 1 for run in runs)
    added = max(content["harness"].values())
    kept = {
        f"the same arm within {WITHIN:.0%}": (f"{near} of {len(runs)}", near == len(runs)),
        f"a busy wait of {WAITS:.0%} is seen": (f"{seen} of {len(runs)}", seen == len(runs)),
    }
    for arm, ratio in {"again": 1, **TRUE_RATIOS}.items():
        held = sum(run[arm][1] <= ratio <= run[arm][2] for run in runs)
        kept[f"its interval holds {ratio:g}"] = (f"{held} of {len(runs)}", held >= enough)
    kept[f"the harness adds under {ADDED:.0%}"] = (f"{added:.2%}", added < ADDED)
    return kept


def _promises_of_plain(rows: Sequence[dict[str, Any]]) -> dict[str, tuple[str, bool]]:
    kept: dict[str, tuple[str, bool]] = {}
    for size in dict.fromkeys((row["rows"], row["length"]) for row in rows):
        ratios = {row["arm"]: row["ratio"] for row in rows if (row["rows"], row["length"]) == size}
        worst = max(ratios, key=lambda arm: np.nan_to_num(abs(ratios[arm] - 1), nan=np.inf))
        near = sum(abs(ratio - 1) <= PLAIN for ratio in ratios.values())
        reached = f"{near} of {len(ratios)}, {worst} {ratios[worst] - 1:+.1%}"
        kept[f"within {PLAIN:.0%} of a plain script, {size[0]} x {size[1]}"] = (reached, near == len(ratios))
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


def compare_with_plain(arms: Sequence[str], rows: int, length: int) -> list[dict[str, Any]]:
    """Time arms with the benchmark and with plain scripts, in turns. ``ratio`` is the benchmark's time over the other.

    Arms that are not installed are left out. One that cannot be timed has the ratio NaN and a ``failure``.
    """
    config = recipe("minilm")
    model = BenchedModel("minilm", Checkpoint(config, initialize(config)))
    cell = Cell(model.name, "forward", "padded", "float32", "cpu", rows, length, 1.0, cores())
    cases = [
        Case(arm, cell) for arm in arms if not ARMS[arm].why_unsupported(config, cell.workload, cell.dtype, cell.device)
    ]
    settings = Settings()
    found: list[dict[str, Any]] = []
    with TemporaryDirectory(prefix="triglot-") as folder, Toolchain(settings.time_limit) as toolchain:
        work = Work(model, cell, settings, Path(folder))
        for start in range(0, len(cases), TOGETHER):
            with Workers(work, settings, WORKER, _show_nothing, toolchain) as workers, ExitStack() as scripts:
                group = cases[start : start + TOGETHER]
                alive = [case for case in group if workers.start(case)]
                medians = {case: scripts.enter_context(_plain_script(case, work.checkpoint)) for case in alive}
                found += _take_turns(workers, medians, settings)
                found += [_failed_row(workers.result(case)) for case in group if case not in alive]
    return found


def _failed_row(result: Result) -> dict[str, Any]:
    cell = result.case.cell
    row = {"arm": result.case.arm, "rows": cell.batch, "length": cell.length}
    row |= {"ratio": float("nan"), "failure": result.failure}
    print(row, file=sys.stderr)  # noqa: T201
    return row


def _show_nothing(_text: str, _rounds: float = 0.0) -> None:
    pass


@contextmanager
def _plain_script(case: Case, checkpoint: Path) -> Generator[Callable[[], float]]:
    """Start a plain script, and yield a function that asks it for a median in ms. Only the thread count is set."""
    command = [sys.executable, "-m", "triglot.bench.studies.plain", case.arm, str(checkpoint)]
    command += [str(case.cell.batch), str(case.cell.length)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(case.cell.threads)}
    with subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:

        def median() -> float:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("\n")
            process.stdin.flush()
            line = next(line for line in process.stdout if line.startswith(MEDIAN))
            time.sleep(SPIN)
            return float(line.removeprefix(MEDIAN))

        median()  # wait until it is ready
        yield median


def _take_turns(
    workers: Workers, medians: dict[Case, Callable[[], float]], settings: Settings
) -> Iterator[dict[str, Any]]:
    plain_ms: dict[Case, list[float]] = {case: [] for case in medians}
    generator = np.random.default_rng(0)
    for _ in range(ROUNDS):
        for place in generator.permutation(len(medians)):
            case = list(medians)[int(place)]
            if workers.sample(case, settings.seconds / settings.rounds):
                plain_ms[case].append(medians[case]())
    for case, plain in plain_ms.items():
        bench = [float(np.median(samples)) for samples in workers.result(case).rounds]
        row = {"arm": case.arm, "rows": case.cell.batch, "length": case.cell.length}
        row |= {"bench_ms": float(np.median(bench)), "plain_ms": float(np.median(plain))}
        row["ratio"] = float(np.median(np.divide(bench, plain)))
        print(row, file=sys.stderr)  # noqa: T201
        yield row


if __name__ == "__main__":
    typer.run(main)
