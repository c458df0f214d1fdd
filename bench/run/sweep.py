"""The run: for each cell, build every arm in a process of its own, judge what it computes, and let them take turns.

A few workers are alive at once: a reference arm, against which all others are paired, and a group of others. Round
after round, each of them runs for a moment, in an order drawn anew; the rest sleep. Then the next group. The reference
has a second worker, whose ratio to the first shows the noise of the machine.
"""

import tempfile
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from functools import partial
from math import ceil
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np

from triglot.bench.machine import memory
from triglot.bench.report import statistics
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.errors import BenchError, CheckpointError, InputError

from .arms import ARMS
from .cases import Case, Cell, digest
from .extra_rounds import Spare
from .results import Comparison, Known, Result
from .settings import Settings
from .toolchain import Toolchain
from .work import Work
from .workers import Step, Workers

FEWEST_ROUNDS = 6
LONGEST = 6  # times as many rounds, where the machine is so unsteady that those planned say too little
MEMORY_MB = 10 * 1024  # what the workers alive at once may take: a sweep of BERT-base is to stay below 12 GB


class Sweep:
    """The results of the cells so far, in ``results`` and ``comparisons``; ``on_step`` is told of each step.

    ``tokenizer`` belongs to the model, if it has one. ``command`` starts a worker. ``toolchain``: what
    PyTorch's compiler knows of the machine beforehand; None: nothing.
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
        known: Known | None = None,
        facts: Mapping[str, Any] | None = None,
        toolchain: Toolchain | None = None,
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
        self._toolchain = toolchain
        self._generator = np.random.default_rng(settings.seed)
        self._asked: Container[str] = ()
        self.results: list[Result] = []
        self.comparisons: list[Comparison] = []
        self.environments: dict[str, Any] = {}
        self.others: dict[str, float | None] = {}

    def keep(self, asked: Container[str]) -> None:
        """Take over what an earlier sweep has of cases that are not asked for.

        Raises:
            BenchError: it was measured with other code, weights or packages, and would be lost.
        """
        self._asked = asked
        for name, known in self._known.results.items():
            if name not in asked and not self._take_over(known.case):
                raise BenchError(
                    f"the file to complete has {name}, which is not asked for, and was measured with other code, "
                    "weights or packages; write another file"
                )

    def times(self, cell: Cell) -> bool:
        """Whether there is an arm to time in a cell: one that can take part, and that no earlier sweep has."""
        return any(not self._is_done(Case(arm, cell)) and self._why_not(arm, cell) is None for arm in self._arms)

    def _why_not(self, arm: str, cell: Cell) -> str | None:
        return ARMS[arm].why_not(self._checkpoint.config, cell.workload, cell.dtype, cell.device)

    def run(self, cell: Cell) -> None:
        """Time every arm in ``cell``; whatever goes wrong with one is its result."""
        with tempfile.TemporaryDirectory(prefix="triglot-") as folder:
            try:
                work = Work(self._checkpoint, cell, self._tokenizer, self._settings, Path(folder))
            except (InputError, CheckpointError) as error:  # it is too long, or its weights do not fit the dtype
                cases = [Case(arm, cell) for arm in self._arms]
                self.results += [Result(one, "skipped", str(error), digest=digest(one, self._facts)) for one in cases]
                return
            cases: list[Case] = []
            for arm in self._arms:
                case = Case(arm, cell)
                twin = Case(arm, cell, copy=1)
                if self._is_done(case):
                    self._take_over(case)
                    if self._is_done(twin):
                        self._take_over(twin)
                    continue
                if why := self._why_not(arm, cell):
                    self.results.append(Result(case, "skipped", why, digest=digest(case, self._facts)))
                else:
                    cases.append(case)
            if not cases:
                for arm in self._arms:  # a twin that failed has nothing to be timed beside
                    if not self._has(twin := Case(arm, cell, copy=1)):
                        self._take_over(twin)
                return
            before = list(self.results)
            others = self.others.get(cell.id)  # while what an earlier sweep has was timed
            with Workers(work, self._settings, self._command, self._step, self._toolchain) as workers:
                for _ in self._groups(cases, self._earlier_reference(cell), workers):
                    # After each group, so that whoever stops the sweep keeps what there is.
                    self.others[cell.id] = max(others, workers.others() or 0.0) if others else workers.others()
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
        compared = [one for one in self._known.comparisons if one.a == case.id]
        self.comparisons += [one for one in compared if self._stands(one) or one.b not in self._asked]
        self.others.setdefault(case.cell.id, self._known.others.get(case.cell.id))
        return True

    def _has(self, case: Case) -> bool:
        return any(result.case == case for result in self.results)

    def _is_done(self, case: Case) -> bool:
        """Whether an earlier sweep has it, and neither it nor what it was compared with has to be tried again."""
        known = self._known
        if not self._is_known(case) or known.results[case.id].status == "failed":
            return False
        if compared := [one for one in known.comparisons if one.a == case.id]:
            return all(self._stands(one) for one in compared)
        # What it was to be compared with may have died too late for another: then two stand there without a ratio.
        alive = [one.case for one in known.results.values() if one.status == "ok" and not one.case.copy]
        alone = all(one.arm == case.arm for one in alive if one.cell == case.cell)
        return known.results[case.id].status != "ok" or alone or any(one.b == case.id for one in known.comparisons)

    def _stands(self, comparison: Comparison) -> bool:
        """Whether what a case was compared with came through; if it is timed again, that is another process."""
        base = self._known.results.get(comparison.b)
        return base is not None and base.status == "ok"

    def _is_known(self, case: Case) -> bool:
        known = self._known.results.get(case.id)
        return known is not None and known.digest == digest(case, self._facts)

    def _earlier_reference(self, cell: Cell) -> Case | None:
        """What an earlier sweep compared the arms of the cell with, or else one that it timed."""
        bases = {one.b for one in self._known.comparisons}
        there = [one.case for one in self.results if one.status == "ok" and one.case.cell == cell and not one.case.copy]
        return next((case for case in there if case.id in bases), there[0] if there else None)

    def _groups(self, cases: list[Case], earlier: Case | None, workers: Workers) -> Iterator[None]:
        candidates = [earlier] if earlier is not None else []
        reference: Case | None = None
        spare = Spare()
        while cases:
            while (candidates or cases) and not workers.is_alive(reference):
                reference = (candidates or cases).pop(0)
                workers.start(reference)
            if reference is not None and workers.is_alive(reference) and self._settings.again:
                twin = Case(reference.arm, reference.cell, copy=1)
                cases = [twin, *cases] if not self._has(twin) else cases
            size = beside(workers.memory(reference), self._settings.together, memory.available_mb())
            groups = max(1, ceil(len(cases) / size))
            group, cases = cases[:size], cases[size:]
            alive = [case for case in group if workers.start(case)]
            share = partial(spare.of_group, len(workers.results), len(cases), groups)
            reference, spent = self._take_turns(reference, alive, workers, share)
            spare.spend(spent)
            workers.close(case for case in alive if case != reference)
            yield

    def _take_turns(
        self, reference: Case | None, others: list[Case], workers: Workers, share: Callable[[], float]
    ) -> tuple[Case | None, float]:
        """Let them take turns; the reference, or what took its place, and the seconds spent on more rounds.

        ``share`` gives those seconds at most, when the rounds that were planned are over.
        """
        reference, others = _standing(reference, others, workers, {})
        if reference is None:
            return None, 0.0
        cases = [reference, *others]
        settings = self._settings
        count = rounds_for(workers.expected(reference), settings)
        wanted = {case: min(count, rounds_for(workers.expected(case), settings)) for case in cases}
        turns: dict[Case, list[int]] = {case: [] for case in cases}  # the rounds in which each took part
        begin = since = monotonic()
        most = 0.0
        with workers.watching():
            for number in range(LONGEST * count):
                if number == count:
                    since, most = monotonic(), share()
                if number >= count:
                    of_a_round = (monotonic() - begin) / number
                    if monotonic() - since + of_a_round > most:
                        break
                    if (number - count) % max(1, count // 4) == 0:
                        found = _compared(reference, others, workers, turns)
                        if all(one.ratio.is_precise for one in found):
                            break  # or where there is nothing to compare
                told = f"{count}" if number < count else f"{LONGEST * count} at most, on an unsteady machine"
                self._step(f"round {number + 1} of {told}: {', '.join(case.arm for case in cases)}")
                for place in self._generator.permutation(len(cases)):
                    case = cases[int(place)]
                    has_turn = takes_part(number, wanted[case], count)
                    if has_turn and workers.sample(case, settings.seconds / wanted[case]):
                        turns[case].append(number)
                before = reference
                reference, others = _standing(reference, others, workers, turns)
                if reference is not None and reference != before:
                    wanted[reference] = count  # from now on there is somebody to compare with in each round
        self.comparisons += _compared(reference, others, workers, turns)
        return reference, monotonic() - since


def _standing(
    reference: Case | None, others: list[Case], workers: Workers, turns: Mapping[Case, Sequence[int]]
) -> tuple[Case | None, list[Case]]:
    """The reference and the others; where it died, who had most turns takes its place, the first of them, no twin."""
    if workers.is_alive(reference):
        return reference, others
    alive = [case for case in others if workers.is_alive(case) and not case.copy]
    if not alive:
        return None, []
    next_one = max(alive, key=lambda case: len(turns.get(case, ())))
    return next_one, [case for case in alive if case != next_one]


def _compared(
    reference: Case | None, others: Sequence[Case], workers: Workers, turns: Mapping[Case, Sequence[int]]
) -> list[Comparison]:
    """The ratios of those that came through, from the rounds in which both took part; of few there is none."""
    if reference is None or workers.result(reference).status != "ok":
        return []
    ours = _by_number(reference, workers, turns)
    enough = min(FEWEST_ROUNDS, workers.settings.rounds)
    found: list[Comparison] = []
    for case in others:
        theirs = _by_number(case, workers, turns)
        both = [number for number in theirs if number in ours]
        if workers.result(case).status == "ok" and len(both) >= enough:
            ratio = statistics.ratio([theirs[number] for number in both], [ours[number] for number in both])
            found.append(Comparison(case.id, reference.id, ratio))
    return found


def _by_number(case: Case, workers: Workers, turns: Mapping[Case, Sequence[int]]) -> dict[int, list[float]]:
    """The samples of the last rounds of a case, by the numbers of those rounds."""
    rounds = workers.result(case).rounds
    return dict(zip(turns[case], rounds[len(rounds) - len(turns[case]) :], strict=True))


def rounds_for(call: float, settings: Settings) -> int:
    """In how many rounds a case takes part, of which a call takes so many seconds.

    Fewer where one call in each would take more than the time that was asked for.
    """
    if call * settings.rounds <= settings.seconds:
        return settings.rounds
    return min(settings.rounds, max(FEWEST_ROUNDS, ceil(settings.seconds / call)))


def takes_part(number: int, wanted: int, count: int) -> bool:
    """Whether a case has a turn in a round, if it is to have ``wanted`` of ``count``, evenly spread."""
    return (number + 1) * wanted // count > number * wanted // count


def beside(reference_mb: float, most: int, available_mb: float = float("inf")) -> int:
    """How many workers may be alive beside a reference that takes so much; others were seen to take 1.5 times that.

    ``available_mb``: memory of the machine that is free, without the reference.
    """
    room = min(MEMORY_MB - reference_mb, available_mb)
    return most if reference_mb <= 0 else max(1, min(most, int(room / (1.5 * reference_mb))))
