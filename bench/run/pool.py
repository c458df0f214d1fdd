"""The worker processes of a cell: start them, judge their outputs, warm them up, and ask them for samples."""

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import mkdtemp
from time import monotonic, process_time
from typing import Any, Protocol

import numpy as np

from triglot.bench.machine import load
from triglot.bench.report.report import Result
from triglot.bench.report.statistics import is_steady, percentiles
from triglot.parity.output_names import GENERATED
from triglot.shared.checkpoint import npz
from triglot.shared.errors import CheckpointError, FrameworkError
from triglot.shared.memory import return_freed_memory
from triglot.shared.worker import Message, Worker, WorkerError

from .arms import ARMS
from .cases import Case, Settings
from .toolchain import Toolchain, cache_variables
from .work import Work

WARM_UP_WINDOW = 0.1  # seconds
# Seconds. In three arms with calls this long, the first call of a turn took -14, 5 and 10 ms longer than the second,
# give or take 7, 9 and 14, which is not worth an extra call. In arms with calls of 0.2 s it took up to 13 ms longer.
LONG_CALL = 0.7


class OnStep(Protocol):
    """What is called at each step."""

    def __call__(self, text: str, rounds: float = 0.0, /) -> None:
        """Show the step. ``rounds`` is the share of the group's planned rounds that is done."""
        ...


class _CaseError(Exception):
    """Why a case cannot be timed."""


@dataclass
class _Measured:
    """What is measured of a case but is not part of its result."""

    folder: Path = Path()
    first_call_s: float = 0.0
    peak_mb: float = 0.0  # until its outputs were judged
    call_s: float = 0.0  # after warming up
    generated_tokens: int | None = None
    processes: int = 1  # how many were started so far
    device_samples: list[float] = field(default_factory=list[float])


class Workers:
    """The workers that are alive, and the results of all that were started."""

    def __init__(
        self,
        work: Work,
        settings: Settings,
        command: Sequence[str],
        on_step: OnStep,
        toolchain: Toolchain,
    ) -> None:
        self._work, self._command, self._toolchain = work, command, toolchain
        self.settings, self.on_step = settings, on_step
        self._alive: dict[Case, Worker] = {}
        self._results: dict[Case, Result] = {}
        self._measured: dict[Case, _Measured] = {}
        self.environments: dict[str, Any] = {}
        self._own_processor_seconds = 0.0
        self._others_processor_seconds = self._watched_seconds = 0.0

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_: object) -> None:
        self.close(list(self._alive))

    def results(self) -> list[Result]:
        """Return the result of each case that was started, with the statistics of its samples so far."""
        for case, result in self._results.items():
            if result.status == "ok" and result.rounds:
                measured = self._measured[case]
                result.latency_ms = percentiles([sample for samples in result.rounds for sample in samples])
                if measured.device_samples:
                    result.device_ms = percentiles(measured.device_samples)
                result.compile_s = max(0.0, measured.first_call_s - result.latency_ms.p50 / 1000)
                self._work.add_throughput(result, measured.generated_tokens)
        return list(self._results.values())

    def result(self, case: Case) -> Result:
        """Return the result of a case that was started."""
        return self._results[case]

    def is_alive(self, case: Case | None) -> bool:
        """Return whether a case can be timed."""
        return case in self._alive

    def peak_mb(self, case: Case | None) -> float:
        """Return the most memory in MiB that a case took; 0 if that is not known, or the case runs on a GPU."""
        return self._measured[case].peak_mb if case is not None and case.cell.device == "cpu" else 0.0

    def call_seconds(self, case: Case) -> float:
        """Return the seconds that a call takes after warming up."""
        return self._measured[case].call_s

    @contextmanager
    def watching_others(self) -> Generator[None]:
        """Measure, inside the context, how many processors other processes use."""
        begin, busy, own = monotonic(), load.busy_seconds(), self._own_processor_seconds + process_time()
        yield
        if busy is not None:
            own = self._own_processor_seconds + process_time() - own
            self._others_processor_seconds += (load.busy_seconds() or 0.0) - busy - own
            self._watched_seconds += monotonic() - begin

    def used_by_others(self) -> float | None:
        """Return how many processors others used while the arms took turns; None if that is not known."""
        return max(0.0, self._others_processor_seconds / self._watched_seconds) if self._watched_seconds else None

    def start(self, case: Case) -> bool:
        """Build a case in a new process, judge its outputs and warm it up. Return whether it can be timed."""
        self._results[case], self._measured[case] = Result(case), _Measured()
        try:
            self._build(case)
            self.on_step(f"warming up {case.arm}")
            windows = self._warm_up(case)
        except _CaseError as error:
            self._fail(case, error)
            return False
        self._results[case].warm_up_calls = sum(map(len, windows))
        self._measured[case].call_s = float(np.median(np.concatenate(windows[-3:]))) / 1000
        return True

    def restart(self, case: Case) -> None:
        """Let a new process compute a case from now on. Its outputs are not judged again."""
        if case not in self._alive:
            return
        measured = self._measured[case]
        self.close([case])
        try:
            self._launch(case, measured.folder, None)
            self._warm_up(case)
        except _CaseError as error:
            self._fail(case, error)
        measured.processes += 1

    def _build(self, case: Case) -> None:
        arm, cell, work, measured = ARMS[case.arm], case.cell, self._work, self._measured[case]
        self.on_step("computing the truth")
        try:
            work.truth()  # before the worker starts, because both need memory
        except FrameworkError as error:
            raise _CaseError(str(error)) from error
        folder = measured.folder = Path(mkdtemp(prefix=f"{case.arm}-{int(case.is_twin)}-", dir=work.folder))
        compiles_cpp = arm.compiles_cpp(work.config, cell.workload, cell.dtype, cell.device)
        if compiles_cpp and not self.settings.quick:
            self.on_step("preparing PyTorch's compiler")
            try:
                self._toolchain.copy_to(folder)
            except OSError as error:
                raise _CaseError(f"cannot prepare the compiler: {error.strerror or error}") from error
        self.on_step(f"building {case.arm}")
        answer = self._launch(case, folder, folder / "outputs.npz")
        self.environments[case.arm] = answer["environment"]
        for name in ("import_s", "load_s", "peak_rss_mb", "peak_device_mb"):
            setattr(self._results[case], name, answer[name])
        measured.first_call_s, measured.peak_mb = answer["first_call_s"], answer["judged_rss_mb"]
        try:
            outputs = npz.read(folder / "outputs.npz")
        except CheckpointError as error:
            raise _CaseError(f"the outputs cannot be read: {error}") from error
        if GENERATED in outputs:
            measured.generated_tokens = int(outputs.pop(GENERATED))
        try:
            parity = self._results[case].parity = work.judge(outputs)
        except MemoryError as error:
            raise _CaseError("not enough memory to judge the outputs") from error
        finally:
            return_freed_memory()  # what judging gradients took
        if parity.verdict != "pass":
            raise _CaseError(f"{parity.name} diverged: {parity.reason}")

    def _launch(self, case: Case, folder: Path, outputs: Path | None) -> Message:
        """Start a process that builds the case and computes it once. It writes what is to be judged to ``outputs``."""
        variables = {**self.settings.worker_variables(), **cache_variables(folder)}
        log = folder / "log"
        self._alive[case] = Worker(self._command, log, case.cell.threads, self.settings.time_limit, variables)
        work = self._work
        request = {
            "name": case.arm,
            "arm": asdict(ARMS[case.arm]),
            "cell": asdict(case.cell),
            "checkpoint": str(work.checkpoint),
            "parts": [str(file) for file in work.files],
            "judged": str(work.judged_file) if work.judged_file else None,
            "outputs": str(outputs) if outputs else None,
            "processors": load.processors(case.cell.threads),
            "memory_limit_mb": self.settings.memory_limit_mb,
        }
        return self._ask(case, "build", request)

    def _warm_up(self, case: Case) -> list[list[float]]:
        """Call the case until its times no longer fall, and wait until its threads sleep.

        Return the milliseconds of the calls.
        """
        windows: list[list[float]] = []
        end = monotonic() + self.settings.warm_up
        while not is_steady(windows) and (monotonic() < end or not windows):
            windows.append(self._sample(case, WARM_UP_WINDOW)["samples_ms"])
        self._ask(case, "settle", {})
        return windows

    def sample(self, case: Case, seconds: float) -> list[float] | None:
        """Take the samples of one turn, and return their milliseconds; None if the case is dead, or dies.

        The first calls of a turn do not count, because they find cold caches and processors that slept during the turns
        of others. For long calls, that effect is too small to spend another call on. The turn ends when the threads of
        the case sleep.
        """
        if case not in self._alive:
            return None
        try:
            uncounted = self.settings.uncounted if self.call_seconds(case) < LONG_CALL else 0.0
            answer = self._sample(case, seconds, uncounted)
            self._ask(case, "settle", {})
        except _CaseError as error:
            self._fail(case, error)
            return None
        result = self._results[case]
        result.rounds.append(answer["samples_ms"])
        result.processes.append(self._measured[case].processes - 1)
        self._measured[case].device_samples += answer["device_ms"]
        result.processors_used = max(answer["processors_used"], result.processors_used or 0.0)
        return answer["samples_ms"]

    def time_new_shapes(self, cases: Iterable[Case]) -> None:
        """Time one call of each case that computes sentences for the first time, to show what new shapes cost.

        If that fails, the process ends, and what was measured before stays.
        """
        for case in cases:
            is_timed = self._results[case].new_shapes_ms is not None
            if is_timed or case.is_twin or case not in self._alive or not self._work.further_files:
                continue
            self.on_step(f"new shapes for {case.arm}")
            request = {
                "config": self._work.config.to_dict(),
                "parts": [str(file) for file in self._work.further_files],
            }
            try:
                self._results[case].new_shapes_ms = self._ask(case, "new_shapes", request)["milliseconds"]
                self._ask(case, "settle", {})
            except _CaseError:
                self.close([case])

    def close(self, cases: Iterable[Case]) -> None:
        """End the processes of these cases."""
        for case in cases:
            if case in self._alive:
                self._alive.pop(case).close()

    def _fail(self, case: Case, error: _CaseError) -> None:
        self._results[case].fail(str(error))
        self.close([case])

    def _sample(self, case: Case, seconds: float, uncounted: float = 0.0) -> Message:
        return self._ask(case, "sample", {"seconds": seconds, "least": 1, "uncounted": uncounted})

    def _ask(self, case: Case, kind: str, request: Message) -> Message:
        """Return the answer of a worker, or raise ``_CaseError``."""
        try:
            self._alive[case].send(kind, request)
            answer = self._alive[case].receive()
        except WorkerError as error:
            limit = self.settings.memory_limit_mb
            advice = f" (the limit was {limit} MiB: raise --memory-limit if that is too little)" if limit else ""
            raise _CaseError(f"{error}{advice}") from error
        self._own_processor_seconds += answer["processor_seconds"]
        return answer
