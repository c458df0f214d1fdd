"""The run: for each cell, build every arm in a process of its own, judge what it computes, and let them take turns.

A few workers are alive at once: a reference arm, against which all others are paired, and a group of others. Round
after round, each of them runs for a moment, in an order drawn anew; the rest sleep. Then the next group. The reference
has a second worker, whose ratio to the first shows the noise of the machine.
"""

import tempfile
from collections.abc import Callable, Container, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import numpy as np

from ..shared import checkpoint as checkpoints
from ..shared import npz
from ..shared.checkpoint import Checkpoint
from ..shared.dtypes import FLOATS
from ..shared.errors import BenchError, CheckpointError, FrameworkError, InputError
from ..shared.parity.harness import weights_for
from ..shared.parity.workers import Worker, WorkerError
from . import flops, machine, statistics, workloads
from .arms import ARMS, TRAINS
from .cases import Case, Cell, digest
from .expectations import GENERATED, Expectation
from .statistics import Ratio
from .training_expectations import TrainingExpectation

JUDGED_TOKENS = 1024  # of a batch: what the reference computes in a few seconds
FEWEST_ROUNDS = 6
# Where the machine is so unsteady that the rounds say too little: how many times as many at most, and how many seconds
# that may take in a cell, or a default sweep would take more than its five minutes.
LONGEST, SPARE = 3, 20.0
MEMORY_MB = 10 * 1024  # what the workers alive at once may take: a sweep of BERT-base is to stay below 12 GB

# What the memory allocator of glibc does with large blocks that were freed. By default it may give them back to the
# system, and take them from it again for the next call: whether it does is a matter of how the blocks happen to lie, so
# it differs from process to process. PyTorch's eager mode was seen 25 % slower for the whole life of a process, and the
# same arm 19 % off from itself. To keep them makes all arms alike, and them fast. Large pages do the same for where the
# blocks lie in the machine's memory: without them, one process of twenty was still 5 % off from its twin.
ALLOCATORS = {
    "keep": {name: str(2**32) for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")}
    | {"MALLOC_TOP_PAD_": str(2**28), "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"},
    "default": {},
}


# JAX would take three quarters of a GPU's memory for each of the workers that are alive at once.
SHARED_DEVICE = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


@dataclass(frozen=True)
class Settings:
    """How long is measured. ``seconds``: of samples for each case, over ``rounds``. ``pause``: between two arms.

    In the pause, threads that still spin for work that does not come end that. ``together``: workers beside the
    reference. ``again``: the reference runs in a second worker too. ``allocator``: see ``ALLOCATORS``.
    ``memory_limit_mb``: mebibytes that each worker may write to; None: no limit.
    """

    seconds: float = 3.0
    rounds: int = 48
    warm_up: float = 4.0
    pause: float = 0.02
    together: int = 3
    time_limit: float = 600.0
    seed: int = 0
    again: bool = True
    allocator: str = "keep"
    memory_limit_mb: int | None = None


@dataclass
class Result:
    """What became of a case. ``rounds``: milliseconds of each call, round by round; ``device``: by a GPU's clock."""

    case: Case
    status: str
    failure: str = ""
    facts: dict[str, Any] = field(default_factory=dict[str, Any])
    rounds: list[list[float]] = field(default_factory=list[list[float]])
    device: list[float] = field(default_factory=list[float])
    digest: str = ""


@dataclass(frozen=True)
class Comparison:
    """How many times as long case ``a`` takes as case ``b``."""

    a: str
    b: str
    ratio: Ratio


@dataclass(frozen=True)
class Known:
    """What an earlier sweep found: results by the id of the case, comparisons, and what others did by cell."""

    results: Mapping[str, Result] = field(default_factory=dict[str, Result])
    comparisons: Sequence[Comparison] = ()
    others: Mapping[str, float | None] = field(default_factory=dict[str, "float | None"])

    def of(self, model: str) -> "Known":
        """What is known of one model."""
        results = {name: one for name, one in self.results.items() if one.case.cell.model == model}
        return Known(results, [one for one in self.comparisons if one.a in results], self.others)


Step = Callable[[str], None]


class Sweep:
    """The results of the cells so far, in ``results`` and ``comparisons``; ``on_step`` is told of each step.

    ``tokenizer`` belongs to the model, if it has one. ``command`` starts a worker.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        arms: Sequence[str],
        settings: Settings,
        *,
        tokenizer: Path | None,
        command: Sequence[str],
        on_step: Step = lambda _: None,
        on_results: Callable[[], None] = lambda: None,
        known: "Known | None" = None,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        self._checkpoint = checkpoint
        self._arms = arms
        self._settings = settings
        self._tokenizer = tokenizer
        self._command = command
        self._step = on_step
        self._on_results = on_results
        self._known = known or Known()
        self._facts = dict(facts or {})
        self._generator = np.random.default_rng(settings.seed)
        self._spare = SPARE
        self.results: list[Result] = []
        self.comparisons: list[Comparison] = []
        self.environments: dict[str, Any] = {}
        self.others: dict[str, float | None] = {}

    def keep(self, asked: Container[str]) -> None:
        """Take over what an earlier sweep has of cases that are not asked for.

        Raises:
            BenchError: it was measured with other code, weights or packages, and would be lost.
        """
        for name, known in self._known.results.items():
            if name not in asked and not self._take_over(known.case):
                raise BenchError(
                    f"the file to complete has {name}, which is not asked for, and was measured with other code, "
                    "weights or packages; write another file"
                )

    def times(self, cell: Cell) -> bool:
        """Whether there is an arm to time in a cell: one that can take part, and that no earlier sweep has."""
        return any(not self._is_known(Case(arm, cell)) and self._why_not(arm, cell) is None for arm in self._arms)

    def _why_not(self, arm: str, cell: Cell) -> str | None:
        return ARMS[arm].why_not(self._checkpoint.config, cell.workload, cell.dtype, cell.device)

    def run(self, cell: Cell) -> None:
        """Time every arm in ``cell``; whatever goes wrong with one is its result."""
        with tempfile.TemporaryDirectory(prefix="triglot-") as folder:
            try:
                self._spare = SPARE
                work = _Work(self._checkpoint, cell, self._tokenizer, self._settings, Path(folder))
            except (InputError, CheckpointError) as error:  # it is too long, or its weights do not fit the dtype
                cases = [Case(arm, cell) for arm in self._arms]
                self.results += [Result(one, "skipped", str(error), digest=digest(one, self._facts)) for one in cases]
                return
            cases: list[Case] = []
            for arm in self._arms:
                case = Case(arm, cell)
                if self._take_over(case):
                    self._take_over(Case(arm, cell, copy=1))
                    continue
                if why := self._why_not(arm, cell):
                    self.results.append(Result(case, "skipped", why, digest=digest(case, self._facts)))
                else:
                    cases.append(case)
            if not cases:
                return
            before = list(self.results)
            with _Workers(work, self._settings, self._command, self._step) as workers:
                for _ in self._groups(cases, self._earlier_reference(cell), workers):
                    # After each group, so that whoever stops the sweep keeps what there is.
                    self.others[cell.id] = workers.others()
                    self.environments |= workers.environments
                    ids = {result.case.id for result in before}
                    self.results = before + [result for result in workers.results if result.case.id not in ids]
                    for result in self.results[len(before) :]:
                        result.digest = digest(result.case, self._facts)
                    self._on_results()

    def _take_over(self, case: Case) -> bool:
        """Whether an earlier sweep has the result of the very same case; then it is ours."""
        if not self._is_known(case):
            return False
        self.results.append(self._known.results[case.id])
        self.comparisons += [one for one in self._known.comparisons if one.a == case.id]
        self.others.setdefault(case.cell.id, self._known.others.get(case.cell.id))
        return True

    def _is_known(self, case: Case) -> bool:
        known = self._known.results.get(case.id)
        return known is not None and known.digest == digest(case, self._facts)

    def _earlier_reference(self, cell: Cell) -> Case | None:
        """What an earlier sweep compared the arms of the cell with."""
        bases = {one.b for one in self._known.comparisons}
        return next((one.case for one in self.results if one.case.id in bases and one.case.cell == cell), None)

    def _groups(self, cases: list[Case], earlier: Case | None, workers: "_Workers") -> Iterator[None]:
        reference = earlier if earlier is not None and workers.start(earlier) else None
        while cases:
            while cases and not workers.is_alive(reference):
                reference = cases.pop(0)
                if workers.start(reference) and self._settings.again:
                    cases.insert(0, Case(reference.arm, reference.cell, copy=1))
            size = beside(workers.memory(reference), self._settings.together, machine.available_mb())
            group, cases = cases[:size], cases[size:]
            alive = [case for case in group if workers.start(case)]
            self._take_turns(reference if workers.is_alive(reference) else None, alive, workers)
            workers.close(alive)
            yield

    def _take_turns(self, reference: Case | None, others: list[Case], workers: "_Workers") -> None:
        cases = [*([reference] if reference is not None else []), *others]
        if not cases:
            return
        begun = {case: len(workers.result(case).rounds) for case in cases}
        slowest = max((workers.expected(case) for case in cases), default=0.0)
        settings = self._settings
        count = settings.rounds
        if slowest * count > 2 * settings.seconds:
            count = max(FEWEST_ROUNDS, int(2 * settings.seconds / slowest))
        for case in cases:
            workers.wake(case, settings.seconds / count)  # the reference has slept while the others were built
        since = monotonic()
        with workers.watching():
            for number in range(LONGEST * count):
                if number == count:
                    since = monotonic()
                if number >= count and (number - count) % max(1, count // 4) == 0:
                    found = _compared(reference, others, workers, begun)
                    if monotonic() - since >= self._spare or all(one.ratio.is_precise for one in found):
                        break  # or where there is nothing to compare
                told = f"{count}" if number < count else f"{LONGEST * count} at most, on an unsteady machine"
                self._step(f"round {number + 1} of {told}: {', '.join(case.arm for case in cases)}")
                for place in self._generator.permutation(len(cases)):
                    workers.sample(cases[int(place)], settings.seconds / count)
        self._spare -= monotonic() - since
        self.comparisons += _compared(reference, others, workers, begun)


def _compared(
    reference: Case | None, others: Sequence[Case], workers: "_Workers", begun: Mapping[Case, int]
) -> list[Comparison]:
    """The ratios of those that came through; ``begun``: how many rounds each had before these."""
    if reference is None or workers.result(reference).status != "ok":
        return []
    ours = workers.result(reference).rounds[begun[reference] :]
    found = {case: workers.result(case) for case in others}
    return [
        Comparison(case.id, reference.id, statistics.ratio(one.rounds, ours))
        for case, one in found.items()
        if one.status == "ok" and len(one.rounds) == len(ours)
    ]


class _Work:
    """What the workers of a cell are given, as files, and what they have to make of it."""

    def __init__(
        self, checkpoint: Checkpoint, cell: Cell, tokenizer: Path | None, settings: Settings, folder: Path
    ) -> None:
        self.folder, self.cell = folder, cell
        self._time_limit, seed = settings.time_limit, settings.seed
        weights = weights_for(checkpoint, cell.dtype, seed)["given"]
        self.checkpoint = folder / "weights.npz"
        checkpoints.save(weights, self.checkpoint)
        self.batches = workloads.batches_of(cell, checkpoint.config, tokenizer, seed)
        self.files = [folder / f"batch-{number}.npz" for number in range(len(self.batches))]
        for file, batch in zip(self.files, self.batches, strict=True):
            npz.write(file, batch.arrays())
        self._weights = weights
        self._expectation: Expectation | TrainingExpectation | None = None
        self._unknown: FrameworkError | None = None
        self._first = workloads.first_rows(self.batches[0], JUDGED_TOKENS)
        # Of a forward pass the first rows can be judged alone, but all rows have a part in a gradient.
        self.judged: Path | None = None
        if cell.workload in TRAINS and (len(self.batches) > 1 or len(self._first.valid) < len(self.batches[0].valid)):
            self.judged = folder / "judged.npz"
            npz.write(self.judged, self._first.arrays())

    def expectation(self) -> Expectation | TrainingExpectation:
        """What is right, computed when it is first asked for.

        Raises:
            FrameworkError: nobody can say it.
        """
        if self._unknown is not None:
            raise self._unknown
        if self._expectation is None:
            try:
                self._expectation = self._computed()
            except (FrameworkError, MemoryError) as error:
                self._unknown = FrameworkError(str(error) or "there is no memory to compute what is right")
                raise self._unknown from error
        return self._expectation

    def _computed(self) -> Expectation | TrainingExpectation:
        if self.cell.workload in TRAINS:
            return TrainingExpectation(self._weights, self.cell, self._first, self.folder, self._time_limit)
        return Expectation(self._weights, self.cell.workload, self._first, self.cell.dtype)

    def facts(self, seconds: float, generated: int | None) -> dict[str, float | None]:
        """Throughput of a call that takes so long. How long a generation becomes is for the model to say."""
        known = self.cell.workload != "generation"
        tokens = sum(int(batch.valid.sum()) for batch in self.batches) if known else generated
        rows = sum(len(batch.valid) for batch in self.batches)
        work = sum(flops.of(self.cell.workload, self._weights.config, batch) for batch in self.batches) if known else 0
        useful = work / seconds / 1e9 if known else None
        itemsize = FLOATS[self.cell.dtype].itemsize
        moved = sum(
            flops.least_bytes(self.cell.workload, self._weights.config, batch, itemsize) for batch in self.batches
        )
        return {
            "tokens_per_second": tokens / seconds if tokens else None,
            "sequences_per_second": rows / seconds,
            "useful_gflops": useful,
            "flops_per_byte": work / moved if known else None,
            "fill": workloads.fill_of(self.batches),
        }


class _Workers:
    """The workers that are alive, and the results of all that were."""

    def __init__(self, work: _Work, settings: Settings, command: Sequence[str], step: Step) -> None:
        self._work = work
        self._settings = settings
        self._command = command
        self._step = step
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

    def __enter__(self) -> "_Workers":
        return self

    def __exit__(self, *_: object) -> None:
        self.close(list(self._alive))

    @contextmanager
    def watching(self) -> Generator[None]:
        """Take notice of what other processes use of the processors meanwhile."""
        before, ours = machine.Moment.now(), self._processor_seconds
        yield
        after = machine.Moment.now()
        used = machine.others(before, after, self._processor_seconds - ours)
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
        self._step(f"building {case.arm}")
        worker = Worker(
            self._command,
            folder / f"{name}.log",
            case.cell.threads,
            self._settings.time_limit,
            ALLOCATORS[self._settings.allocator] | SHARED_DEVICE,
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
            "memory_limit_mb": self._settings.memory_limit_mb,
        }
        answer = self._ask(case, request)
        if answer is None:
            return False
        self.environments[case.arm] = answer.pop("environment")
        result.facts |= answer
        outputs = npz.read(folder / f"{name}.npz")
        if GENERATED in outputs:
            result.facts[GENERATED] = int(outputs.pop(GENERATED))
        parity = expectation.judge(outputs)
        result.facts["parity"] = parity.to_dict()
        if parity.verdict != "pass":
            result.status, result.failure = "failed", f"{parity.name} is not what the reference computes"
            self.close([case])
            return False
        return self._warm_up(case)

    def _warm_up(self, case: Case) -> bool:
        self._step(f"warming up {case.arm}")
        samples: list[float] = []
        end = monotonic() + self._settings.warm_up
        while not statistics.is_steady(samples) and (monotonic() < end or len(samples) < 2):
            answer = self._ask(case, {"seconds": 0.1, "least": 1})
            if answer is None:
                return False
            samples += answer["samples_ms"]
        self._results[case].facts["warm_up_calls"] = len(samples)
        self._expected[case] = float(np.median(samples[-5:])) / 1000
        return True

    def wake(self, case: Case, seconds: float) -> None:
        """A round that does not count."""
        if case in self._alive:
            self._ask(case, {"seconds": seconds, "least": 1})

    def sample(self, case: Case, seconds: float) -> None:
        """One round of a case that is alive; a case that is not is left out."""
        if case not in self._alive:
            return
        sleep(self._settings.pause)
        answer = self._ask(case, {"seconds": seconds, "least": 1})
        if answer is not None:
            self._results[case].rounds.append(answer["samples_ms"])
            self._results[case].device += answer["device_ms"]
            used = max(answer["processors_used"], self._results[case].facts.get("processors_used", 0.0))
            self._results[case].facts["processors_used"] = used

    def close(self, cases: Iterable[Case]) -> None:
        """End the processes of these cases."""
        for case in cases:
            if case in self._alive:
                self._alive.pop(case).close()

    def _ask(self, case: Case, request: Mapping[str, Any]) -> dict[str, Any] | None:
        """The answer; None if there is none, and then that is the result."""
        worker = self._alive[case]
        try:
            worker.send(request)
            answer = worker.receive()
        except WorkerError as error:
            limit = self._settings.memory_limit_mb
            told = f"{error} (memory limit: {limit} MiB)" if limit else str(error)
            self._results[case].status, self._results[case].failure = "failed", told
            self.close([case])
            return None
        if "samples_ms" in answer:
            self._processor_seconds += answer["processors_used"] * sum(answer["samples_ms"]) / 1000
        return answer


def beside(reference_mb: float, most: int, available_mb: float = float("inf")) -> int:
    """How many workers may be alive beside a reference that takes so much; others were seen to take 1.5 times that.

    ``available_mb``: memory of the machine that is free, without the reference.
    """
    room = min(MEMORY_MB - reference_mb, available_mb)
    return most if reference_mb <= 0 else max(1, min(most, int(room / (1.5 * reference_mb))))


def check_cells(cells: Sequence[tuple[Cell, Checkpoint, Path | None]], seed: int) -> None:
    """Find out, before the first is timed, whether a cell fits its model; those that do not are rows that say so.

    ``cells``: each with the model's checkpoint and its tokenizer, if it has one.

    Raises:
        InputError: none does, or there is none.
    """
    if not cells:
        raise InputError("there is nothing to time; give at least one batch size and one length")
    unfit: list[InputError] = []
    for cell, checkpoint, tokenizer in cells:
        try:
            workloads.batches_of(cell, checkpoint.config, tokenizer, seed)
        except InputError as error:
            unfit.append(error)
    if len(unfit) == len(cells):
        raise unfit[0]
