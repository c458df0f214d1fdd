"""The worker processes of a cell: built, judged, warmed up, and asked for samples."""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp
from time import monotonic, process_time, sleep
from typing import Any

import numpy as np

from triglot.bench.machine import load as machine
from triglot.bench.machine import memory
from triglot.bench.report import statistics
from triglot.parity.output_names import GENERATED
from triglot.shared.checkpoint import npz
from triglot.shared.errors import FrameworkError
from triglot.shared.worker import Worker, WorkerError

from .arms import ARMS
from .cases import Case
from .results import Result
from .settings import ALLOCATORS, SHARED_DEVICE, Settings
from .toolchain import Toolchain, compiling_into
from .work import Truth, Work

Step = Callable[[str], None]

AWAKE = 0.01  # seconds of calls that do not count at the beginning of a turn, about, one at least
# Seconds of a call. Of three arms with such calls, the first of a turn took -14, 5 and 10 ms longer than the second,
# give or take 7, 9 and 14: with 0.2 s, where it loses up to 13 ms, that would count.
LONG = 0.7


class Workers:
    """The workers that are alive, and the results of all that were."""

    def __init__(
        self, work: Work, settings: Settings, command: Sequence[str], step: Step, toolchain: Toolchain | None = None
    ) -> None:
        self._work = work
        self.settings = settings
        self._command = command
        self._step = step
        self._toolchain = toolchain
        self._alive: dict[Case, Worker] = {}
        self._results: dict[Case, Result] = {}
        self._expected: dict[Case, float] = {}
        self.environments: dict[str, Any] = {}
        self._processor_seconds = 0.0
        self._others: list[tuple[float, float]] = []

    @property
    def results(self) -> list[Result]:
        """One for each case that was started, with what its samples say."""
        for result in self._results.values():
            if result.status == "ok" and result.rounds:
                samples = [sample for samples in result.rounds for sample in samples]
                result.facts["latency_ms"] = statistics.summary(samples)
                if result.device:
                    result.facts["device_ms"] = statistics.summary(result.device)
                half = result.facts["latency_ms"]["p50"]
                result.facts |= self._work.facts(half / 1000, result.facts.get(GENERATED))
                result.facts["compile_s"] = max(0.0, result.facts["first_s"] - half / 1000)
        return list(self._results.values())

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_: object) -> None:
        self.close(list(self._alive))

    @contextmanager
    def watching(self) -> Generator[None]:
        """Take notice of what other processes use of the processors meanwhile."""
        before, ours = machine.Moment.now(), self._processor_seconds + process_time()
        yield
        after = machine.Moment.now()
        used = machine.others(before, after, self._processor_seconds + process_time() - ours)
        if used is not None:
            self._others.append((used, after.time - before.time))

    def others(self) -> float | None:
        """How many processors others used while the arms took turns; None where that is not known."""
        elapsed = sum(seconds for _, seconds in self._others)
        return sum(used * seconds for used, seconds in self._others) / elapsed if elapsed else None

    def result(self, case: Case) -> Result:
        """What is known of a case that was started."""
        return self._results[case]

    def is_alive(self, case: Case | None) -> bool:
        """Whether there is such a case, and it can be timed."""
        return case in self._alive

    def memory(self, case: Case | None) -> float:
        """The mebibytes that a case took at most, as far as is known; 0 on a GPU, whose memory is another one."""
        if case is None or case not in self._results or case.cell.device != "cpu":
            return 0.0
        return self._results[case].facts.get("judged_rss_mb", 0.0)

    def expected(self, case: Case) -> float:
        """The seconds that a call takes, after warming up."""
        return self._expected.get(case, 0.0)

    def start(self, case: Case) -> bool:
        """Build a case in a new process, judge its outputs and warm it up; whether it is ready to be timed."""
        result = self._results[case] = Result(case, "ok")
        folder = self._work.folder
        name = f"{case.arm}-{case.copy}"
        self._step("computing what is right")
        try:
            expectation = self._work.expectation()  # before the worker is there: both take memory
        except FrameworkError as error:
            result.status, result.failure = "failed", str(error)
            return False
        own = Path(mkdtemp(prefix=f"{name}-", dir=folder))
        if self._toolchain is not None and ARMS[case.arm].compiles_in_cpp(case.cell.device):
            self._step("preparing PyTorch's compiler")
            try:
                self._toolchain.copy_to(own)
            except OSError as error:
                result.status, result.failure = "failed", f"there is no room to compile in: {error.strerror or error}"
                return False
        self._step(f"building {case.arm}")
        worker = Worker(
            self._command,
            own / "log",
            case.cell.threads,
            self.settings.time_limit,
            ALLOCATORS[self.settings.allocator] | SHARED_DEVICE | compiling_into(own),
        )
        self._alive[case] = worker
        request = {
            "case": case.to_dict(),
            "builder": ARMS[case.arm].builder,
            "checkpoint": str(self._work.checkpoint),
            "batches": [str(file) for file in self._work.files],
            "judged": str(self._work.judged) if self._work.judged else None,
            "outputs": str(folder / f"{name}.npz"),
            "processors": machine.processors(case.cell.threads),
            "memory_limit_mb": self.settings.memory_limit_mb,
        }
        answer = self._ask(case, "build", request)
        if answer is None:
            return False
        self.environments[case.arm] = answer.pop("environment")
        result.facts |= answer
        right = self._is_right(case, expectation, folder / f"{name}.npz")
        memory.give_back()  # what was taken to judge gradients
        return right and self._warm_up(case)

    def _is_right(self, case: Case, expectation: Truth, file: Path) -> bool:
        """Judge what a case computed; where it is wrong, that is the result."""
        result = self._results[case]
        outputs = npz.read(file)
        if GENERATED in outputs:
            result.facts[GENERATED] = int(outputs.pop(GENERATED))
        try:
            parity = expectation.judge(outputs)
        except MemoryError:
            result.status, result.failure = "failed", "there is no memory to judge what it computes"
            self.close([case])
            return False
        result.facts["parity"] = {name: getattr(parity, name) for name in ("error", "budget", "verdict", "name")}
        if parity.verdict != "pass":
            result.status, result.failure = "failed", f"{parity.name} diverged: {parity.reason}"
            self.close([case])
            return False
        return True

    def _warm_up(self, case: Case) -> bool:
        self._step(f"warming up {case.arm}")
        windows: list[list[float]] = []
        end = monotonic() + self.settings.warm_up
        while not statistics.is_steady(windows) and (monotonic() < end or not windows):
            answer = self._ask(case, "sample", {"seconds": 0.1, "least": 1})
            if answer is None:
                return False
            windows.append(answer["samples_ms"])
        self._results[case].facts["warm_up_calls"] = sum(map(len, windows))
        self._expected[case] = float(np.median(np.concatenate(windows[-3:]))) / 1000
        return True

    def sample(self, case: Case, seconds: float) -> bool:
        """One round of a case; whether there was one: not of a case that is not alive, or dies.

        Its first call does not count: after the others' turns it finds cold caches and processors that have slept. Of a
        long call that is too little to take twice the time for.
        """
        if case not in self._alive:
            return False
        sleep(self.settings.pause)
        if self.expected(case) < LONG and self._ask(case, "sample", {"seconds": AWAKE, "least": 1}) is None:
            return False
        answer = self._ask(case, "sample", {"seconds": seconds, "least": 1})
        if answer is None:
            return False
        self._results[case].rounds.append(answer["samples_ms"])
        self._results[case].device += answer["device_ms"]
        used = max(answer["processors_used"], self._results[case].facts.get("processors_used", 0.0))
        self._results[case].facts["processors_used"] = used
        return True

    def close(self, cases: Iterable[Case]) -> None:
        """End the processes of these cases."""
        for case in cases:
            if case in self._alive:
                self._alive.pop(case).close()

    def _ask(self, case: Case, kind: str, request: Mapping[str, Any]) -> dict[str, Any] | None:
        """The answer; None if there is none, and then that is the result."""
        worker = self._alive[case]
        try:
            worker.send(kind, request)
            answer = worker.receive()
        except WorkerError as error:
            limit = self.settings.memory_limit_mb
            advice = f" (it had {limit} MiB: raise --memory-limit if that was too little)"
            told = f"{error}{advice if limit else ''}"
            self._results[case].status, self._results[case].failure = "failed", told
            self.close([case])
            return None
        self._processor_seconds += answer["processor_seconds"]
        return answer
