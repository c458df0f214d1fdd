"""The rounds: arms take turns, in a new random order in each round, and the ratios come from shared rounds.

Two processes of the same arm can differ for their whole lives, so the rounds are spread over several processes of each
arm. If the ratios are still imprecise, a group of arms gets further processes, as long as ``ExtraTime`` allows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil
from time import monotonic

import numpy as np

from triglot.bench.report.report import Comparison
from triglot.bench.report.statistics import paired_ratio

from .cases import Case, Settings
from .pool import Workers

FEWEST_ROUNDS = 6
MOST_EXTENDED = 6  # times the planned rounds, if those leave the ratios too imprecise
CELL = 240.0  # seconds that a cell of few arms may take; a table of all arms takes longer anyway


class ExtraTime:
    """The time that a cell may spend on more rounds; create it when the cell begins.

    There is some if the cell would, at the pace so far, end before ``CELL`` seconds.
    """

    def __init__(self) -> None:
        self._begin = monotonic()

    def share_of_group(self, started: int, remaining: int, groups: int) -> float:
        """Return the seconds for a group whose planned rounds are over.

        ``started`` arms had their turns so far, ``remaining`` ones will, and ``groups`` are left including this one.
        """
        elapsed = monotonic() - self._begin
        expected_end = elapsed + elapsed / started * remaining
        return max(0.0, CELL - expected_end) / groups


@dataclass(frozen=True)
class Outcome:
    """The baseline that is alive after the rounds, and the ratios to it.

    ``is_interrupted``: Ctrl-C ended the rounds, so there are fewer than planned.
    """

    baseline: Case | None
    comparisons: Sequence[Comparison]
    is_interrupted: bool = False


# The samples of each case in each round in which it took part.
_Turns = dict[Case, dict[int, list[float]]]


def take_turns(
    baseline: Case | None,
    others: Sequence[Case],
    workers: Workers,
    generator: np.random.Generator,
    extra_seconds: Callable[[], float],
) -> Outcome:
    """Run the rounds of a group. ``extra_seconds`` is called when the planned rounds are over.

    Ctrl-C ends the rounds; the outcome says so, and the caller has to raise it again.
    """
    turns: _Turns = {}
    baseline, others = _live_baseline(baseline, others, workers, turns)
    if baseline is None:
        return Outcome(None, [])
    cases = [baseline, *others]
    turns |= {case: {} for case in cases}
    settings = workers.settings
    planned = planned_rounds(workers.call_seconds(baseline), settings)
    wanted = {case: min(planned, planned_rounds(workers.call_seconds(case), settings)) for case in cases}
    begin = deadline = monotonic()
    is_interrupted = False
    try:
        for number in range(planned if settings.quick else MOST_EXTENDED * planned):
            process = process_of_round(number, planned, settings.processes)
            is_new = number > 0 and process != process_of_round(number - 1, planned, settings.processes)
            if is_new and number >= planned:
                if number == planned:
                    deadline = monotonic() + extra_seconds()
                seconds_per_process = (monotonic() - begin) / number * max(1, planned / settings.processes)
                comparisons = _compare(baseline, others, workers, turns, planned)
                is_precise = all(comparison.ratio.is_precise for comparison in comparisons)  # also if there are none
                if is_precise or monotonic() + seconds_per_process > deadline:
                    break
            done = min(1.0, number / planned)
            order = [cases[int(place)] for place in generator.permutation(len(cases))]
            if is_new:
                for case in order:
                    workers.on_step(f"starting {case.arm} again", done)
                    workers.restart(case)
            total = f"{planned}" if number < planned else f"up to {MOST_EXTENDED * planned}"
            workers.on_step(f"round {number + 1} of {total}: {', '.join(case.arm for case in cases)}", done)
            with workers.watching_others():
                for case in order:
                    if takes_part(number, wanted[case], planned):
                        samples = workers.sample(case, settings.seconds / wanted[case])
                        turns[case] |= {number: samples} if samples else {}
            previous = baseline
            baseline, others = _live_baseline(baseline, others, workers, turns)
            if baseline is not None and baseline != previous:
                wanted[baseline] = planned  # so that every later round has something to compare with
    except KeyboardInterrupt:
        is_interrupted = True
    comparisons = _compare(baseline, others, workers, turns, planned)
    return Outcome(baseline, comparisons, is_interrupted)


def _live_baseline(
    baseline: Case | None, others: Sequence[Case], workers: Workers, turns: _Turns
) -> tuple[Case | None, Sequence[Case]]:
    """Return the baseline and the others. A dead baseline is replaced by the case with most turns, never by a twin."""
    if workers.is_alive(baseline):
        return baseline, others
    alive = [case for case in others if workers.is_alive(case) and not case.is_twin]
    if not alive:
        return None, []
    successor = max(alive, key=lambda case: len(turns.get(case, ())))
    return successor, [case for case in alive if case != successor]


def _compare(
    baseline: Case | None, others: Sequence[Case], workers: Workers, turns: _Turns, planned: int
) -> list[Comparison]:
    """Return the ratios of the cases that succeeded, from rounds shared with the baseline, if those are enough."""
    if baseline is None or workers.result(baseline).status != "ok":
        return []
    process = partial(process_of_round, planned=planned, processes=workers.settings.processes)
    enough = min(FEWEST_ROUNDS, workers.settings.rounds)
    comparisons: list[Comparison] = []
    for case in others:
        shared = turns[case].keys() & turns[baseline].keys()
        if workers.result(case).status == "ok" and len(shared) >= enough:
            comparisons.append(Comparison(case.id, baseline.id, paired_ratio(turns[case], turns[baseline], process)))
    return comparisons


def process_of_round(number: int, planned: int, processes: int) -> int:
    """Return which process of each case computes a round: the planned rounds are divided evenly among ``processes``."""
    return number * processes // planned


def planned_rounds(call_seconds: float, settings: Settings) -> int:
    """Return the number of rounds in which a case takes part.

    That is fewer than ``settings.rounds`` if one call per round would take longer than ``settings.seconds``.
    """
    if call_seconds * settings.rounds <= settings.seconds:
        return settings.rounds
    return min(settings.rounds, max(FEWEST_ROUNDS, ceil(settings.seconds / call_seconds)))


def takes_part(number: int, wanted: int, planned: int) -> bool:
    """Return whether a case has a turn in a round. Its ``wanted`` turns are spread evenly over ``planned`` rounds."""
    return (number + 1) * wanted // planned > number * wanted // planned
