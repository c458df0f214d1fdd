"""The worker processes of a cell: start them, judge their outputs, warm them up, and ask them for samples."""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import mkdtemp
from time import monotonic, process_time, sleep
from typing import Any

import numpy as np

from triglot.bench.machine import load
from triglot.bench.report.report import Result
from triglot.bench.report.statistics import is_steady, percentiles
from triglot.parity.output_names import GENERATED
from triglot.shared.checkpoint import npz
from triglot.shared.errors import FrameworkError
from triglot.shared.worker import Worker, WorkerError

from .arms import ARMS
from .cases import Case, Settings
from .toolchain import Toolchain, cache_variables
from .work import Work

WARM_UP_WINDOW = 0.1  # seconds
UNCOUNTED = 0.01  # seconds of calls, and at least one call, that do not count at the beginning of a turn
# Seconds. In three arms with calls this long, the first call of a turn took -14, 5 and 10 ms longer than the second,
# give or take 7, 9 and 14, which is not worth an extra call. In arms with calls of 0.2 s it took up to 13 ms longer.
LONG_CALL = 0.7


@dataclass
class _Measured:
    """What is measured of a case and does not stand in its result."""

    first_call_s: float = 0.0
    peak_mb: float = 0.0  # until its outputs were judged
    call_s: float = 0.0  # after warming up
    generated_tokens: int | None = None
    device_samples: list[float] = field(default_factory=list[float])


class Workers:
    """The workers that are alive, and the results of all that were started."""

    def __init__(
        self,
        work: Work,
        settings: Settings,
        command: Sequence[str],
        on_step: Callable[[str], None],
        toolchain: Toolchain,
    ) -> None:
        self._work, self._command, self._toolchain = work, command, toolchain
        self.settings, self.on_step = settings, on_step
        self._alive: dict[Case, Worker] = {}
        self._results: dict[Case, Result] = {}
        self._measured: dict[Case, _Measured] = {}
        self.environments: dict[str, Any] = {}
        self._own_processor_seconds = 0.0
        self._used_by_others: list[tuple[float, float]] = []  # processors, and for how many seconds

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
        """Measure meanwhile how many processors other processes use."""
        before, own = load.Moment.now(), self._own_processor_seconds + process_time()
        yield
        after = load.Moment.now()
        used = load.used_by_others(before, after, self._own_processor_seconds + process_time() - own)
        if used is not None:
            self._used_by_others.append((used, after.time - before.time))

    def used_by_others(self) -> float | None:
        """Return how many processors others used while the arms took turns; None if that is not known."""
        elapsed = sum(seconds for _, seconds in self._used_by_others)
        return sum(used * seconds for used, seconds in self._used_by_others) / elapsed if elapsed else None

    def start(self, case: Case) -> bool:
        """Build a case in a new process, judge its outputs and warm it up. Return whether it can be timed."""
        result = self._results[case] = Result(case)
        self._measured[case] = _Measured()
        self.on_step("computing the truth")
        try:
            self._work.truth()  # before the worker starts, because both need memory
        except FrameworkError as error:
            result.fail(str(error))
            return False
        folder = Path(mkdtemp(prefix=f"{case.arm}-{int(case.is_twin)}-", dir=self._work.folder))
        if ARMS[case.arm].compiles_cpp(case.cell.device):
            self.on_step("preparing PyTorch's compiler")
            try:
                self._toolchain.copy_to(folder)
            except OSError as error:
                result.fail(f"cannot prepare the compiler: {error.strerror or error}")
                return False
        self.on_step(f"building {case.arm}")
        variables = {**self.settings.worker_variables(), **cache_variables(folder)}
        self._alive[case] = Worker(
            self._command, folder / "log", case.cell.threads, self.settings.time_limit, variables
        )
        return self._build(case, folder / "outputs.npz") and self._warm_up(case)

    def _build(self, case: Case, outputs: Path) -> bool:
        arm, work = ARMS[case.arm], self._work
        request = {
            "case": {"arm": case.arm, **asdict(case.cell)},
            "arm": {name: getattr(arm, name) for name in ("framework", "mode", "builder", "packages")},
            "checkpoint": str(work.checkpoint),
            "batches": [str(file) for file in work.files],
            "judged": str(work.judged_file) if work.judged_file else None,
            "outputs": str(outputs),
            "processors": load.processors(case.cell.threads),
            "memory_limit_mb": self.settings.memory_limit_mb,
        }
        answer = self._ask(case, "build", request)
        if answer is None:
            return False
        self.environments[case.arm] = answer["environment"]
        result = self._results[case]
        for name in ("import_s", "load_s", "peak_rss_mb", "peak_device_mb"):
            setattr(result, name, answer[name])
        self._measured[case].first_call_s, self._measured[case].peak_mb = (
            answer["first_call_s"],
            answer["judged_rss_mb"],
        )
        is_right = self._judge(case, outputs)
        load.give_back()  # what judging gradients took
        return is_right

    def _judge(self, case: Case, file: Path) -> bool:
        """Judge the outputs of a case, and end it if they are wrong."""
        result = self._results[case]
        outputs = npz.read(file)
        if GENERATED in outputs:
            self._measured[case].generated_tokens = int(outputs.pop(GENERATED))
        try:
            result.parity = self._work.truth().judge(outputs)
        except MemoryError:
            result.fail("not enough memory to judge the outputs")
        else:
            if result.parity.verdict != "pass":
                result.fail(f"{result.parity.name} diverged: {result.parity.reason}")
        if result.status == "failed":
            self.close([case])
        return result.status == "ok"

    def _warm_up(self, case: Case) -> bool:
        self.on_step(f"warming up {case.arm}")
        windows: list[list[float]] = []
        end = monotonic() + self.settings.warm_up
        while not is_steady(windows) and (monotonic() < end or not windows):
            answer = self._ask(case, "sample", {"seconds": WARM_UP_WINDOW, "least": 1})
            if answer is None:
                return False
            windows.append(answer["samples_ms"])
        self._results[case].warm_up_calls = sum(map(len, windows))
        self._measured[case].call_s = float(np.median(np.concatenate(windows[-3:]))) / 1000
        return True

    def sample(self, case: Case, seconds: float) -> bool:
        """Take the samples of one turn. Return whether that worked: not if the case is dead, or dies.

        The first call of a turn does not count, because it finds cold caches and processors that slept during the turns
        of others. Only for long calls is that effect too small to spend another call on.
        """
        if case not in self._alive:
            return False
        sleep(self.settings.pause)
        is_short = self.call_seconds(case) < LONG_CALL
        if is_short and self._ask(case, "sample", {"seconds": UNCOUNTED, "least": 1}) is None:
            return False
        answer = self._ask(case, "sample", {"seconds": seconds, "least": 1})
        if answer is None:
            return False
        result = self._results[case]
        result.rounds.append(answer["samples_ms"])
        self._measured[case].device_samples += answer["device_ms"]
        result.processors_used = max(answer["processors_used"], result.processors_used or 0.0)
        return True

    def close(self, cases: Iterable[Case]) -> None:
        """End the processes of these cases."""
        for case in cases:
            if case in self._alive:
                self._alive.pop(case).close()

    def _ask(self, case: Case, kind: str, request: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the answer of a worker. If there is none, record why, and return None."""
        worker = self._alive[case]
        try:
            worker.send(kind, request)
            answer = worker.receive()
        except WorkerError as error:
            limit = self.settings.memory_limit_mb
            advice = f" (the limit was {limit} MiB: raise --memory-limit if that is too little)" if limit else ""
            self._results[case].fail(f"{error}{advice}")
            self.close([case])
            return None
        self._own_processor_seconds += answer["processor_seconds"]
        return answer
