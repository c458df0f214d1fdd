"""Time arms in the benchmark and in plain scripts (``plain.py``), which have none of its settings, in turns.

Two processes of the same program may differ for their whole lives. For example, the position of memory decides how much
of it glibc returns to the system during a call. PyTorch's eager MiniLM, batch 8, length 128, needs 1,600 to 26,000 new
pages per call, which added 11% to its processor time. So each arm is timed in five pairs of processes, and the median
of their ratios counts. On two cores of an AMD EPYC (Zen 3), the standard deviation of a pair's ratio was 5 to 6% with
six rounds, and 2% with 24.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any, NamedTuple, Self

import numpy as np

from triglot.bench.run.cases import Case, Cell, Settings
from triglot.bench.run.pool import Workers
from triglot.bench.run.sweep import WORKER
from triglot.bench.run.toolchain import Toolchain
from triglot.bench.run.work import BenchedModel, Work
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.environment import cores
from triglot.shared.errors import BenchError
from triglot.shared.model.initializers import initialize
from triglot.shared.model.recipes import recipe

from .plain import MEDIAN

LIMIT = 0.05  # how far the benchmark's time may be from the script's
PAIRS, ROUNDS = 5, 24  # pairs of processes of each arm, and rounds of each pair
TOGETHER = 3  # arms that are timed in turns
SPIN = 0.3  # seconds in which the idle threads of a plain script fall asleep

Row = dict[str, Any]


class Pair(NamedTuple):
    """What the benchmark and a plain script measured in one pair of processes."""

    bench_ms: float
    plain_ms: float
    ratio: float


class PlainScript:
    """A plain script that times an arm in a process of its own. Only the number of threads is set."""

    def __init__(self, case: Case, checkpoint: Path, errors: IO[str], time_limit: float) -> None:
        self._time_limit, self._errors = time_limit, errors
        command = [sys.executable, "-m", "triglot.bench.studies.plain", case.arm, str(checkpoint)]
        command += [str(case.cell.batch), str(case.cell.length)]
        environment = {**os.environ, "OMP_NUM_THREADS": str(case.cell.threads)}
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment,
            text=True,
            start_new_session=True,  # so that its children can be killed too
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._kill()
        self._process.communicate()

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def median(self) -> float:
        """Return the median of a series of calls, in ms.

        Raises:
            BenchError: the script has ended, or it takes longer than the time limit.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        late = threading.Event()
        timer = threading.Timer(self._time_limit, lambda: (late.set(), self._kill()))
        timer.start()
        try:
            self._process.stdin.write("\n")
            self._process.stdin.flush()
            line = next((line for line in self._process.stdout if line.startswith(MEDIAN)), "")
        except BrokenPipeError:
            line = ""
        finally:
            timer.cancel()
        if late.is_set():
            raise BenchError(f"its plain script gave no answer in {self._time_limit:g} s")
        if not line:
            code = self._process.wait()
            self._errors.seek(0)
            *_, last = ["", *self._errors.read().strip().splitlines()]
            raise BenchError(f"its plain script ended with code {code}: {last}")
        time.sleep(SPIN)
        return float(line.removeprefix(MEDIAN))


def compare_with_plain(arms: Sequence[str], rows: int, length: int) -> Iterator[Row]:
    """Time arms with the benchmark and with plain scripts, in turns.

    ``ratios`` has the benchmark's time over the script's for each pair of processes, and ``ratio`` is their median. If
    an arm fails, ``ratio`` is None, and ``failure`` says why.
    """
    config = recipe("minilm")
    model = BenchedModel("minilm", Checkpoint(config, initialize(config)))
    cell = Cell(model.name, "forward", "padded", "float32", "cpu", rows, length, 1.0, cores())
    settings, generator = Settings(), np.random.default_rng(0)
    with TemporaryDirectory(prefix="triglot-") as folder, Toolchain(settings.time_limit) as toolchain:
        work = Work(model, cell, settings, Path(folder))
        for start in range(0, len(arms), TOGETHER):
            cases = [Case(arm, cell) for arm in arms[start : start + TOGETHER]]
            pairs: dict[Case, list[Pair]] = {case: [] for case in cases}
            failures: dict[Case, str] = {}
            for _ in range(PAIRS):
                remaining = [case for case in cases if case not in failures]
                for case, pair in _compare(remaining, work, settings, toolchain, generator, failures).items():
                    pairs[case].append(pair)
            for case in cases:
                yield _row(case, pairs[case], failures.get(case))


def _row(case: Case, pairs: Sequence[Pair], failure: str | None) -> Row:
    row: Row = {"arm": case.arm, "rows": case.cell.batch, "length": case.cell.length, "ratio": None}
    if failure is not None:
        row["failure"] = failure
    else:
        row |= Pair(*np.median(pairs, axis=0).tolist())._asdict()
        row |= {"rounds": ROUNDS, "ratios": [pair.ratio for pair in pairs]}
    print(row, file=sys.stderr)  # noqa: T201
    return row


def _compare(
    cases: Sequence[Case],
    work: Work,
    settings: Settings,
    toolchain: Toolchain,
    generator: np.random.Generator,
    failures: dict[Case, str],
) -> dict[Case, Pair]:
    """Compare each arm with its script, in one pair of processes. Arms that fail are added to ``failures``."""
    scripts: dict[Case, PlainScript] = {}
    plain_ms: dict[Case, list[float]] = {case: [] for case in cases}
    with Workers(work, settings, WORKER, _show_nothing, toolchain) as workers, ExitStack() as opened:
        for case in cases:
            if workers.start(case):
                errors = opened.enter_context((work.folder / f"{case.arm}.txt").open("w+", errors="replace"))
                script = PlainScript(case, work.checkpoint, errors, settings.time_limit)
                scripts[case] = opened.enter_context(script)
                _take_turn(case, script, failures)  # not counted: the script has to load the model first
        for _ in range(ROUNDS):
            for place in generator.permutation(len(scripts)):
                case, script = list(scripts.items())[int(place)]
                if case in failures or workers.sample(case, settings.seconds / settings.rounds) is None:
                    continue
                plain_ms[case] += _take_turn(case, script, failures)
        results = {case: workers.result(case) for case in cases}
    failures |= {case: result.failure or "" for case, result in results.items() if result.status != "ok"}
    pairs: dict[Case, Pair] = {}
    for case in cases:
        if case not in failures:
            bench_ms = [float(np.median(samples)) for samples in results[case].rounds]
            ratio = np.median(np.divide(bench_ms, plain_ms[case]))
            pairs[case] = Pair(float(np.median(bench_ms)), float(np.median(plain_ms[case])), float(ratio))
    return pairs


def _take_turn(case: Case, script: PlainScript, failures: dict[Case, str]) -> list[float]:
    try:
        return [script.median()]
    except BenchError as error:
        failures[case] = str(error)
        return []


def _show_nothing(_text: str, _rounds: float = 0.0) -> None:
    pass
