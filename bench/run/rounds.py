"""The rounds: arms take turns in a new random order in each round, and their ratios come from shared rounds.

On an unsteady machine, a group of arms may continue after the planned rounds, as long as ``ExtraTime`` allows.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import ceil
from time import monotonic

import numpy as np

from triglot.bench.report.report import Comparison
from triglot.bench.report.statistics import paired_ratio

from .cases import Case, Settings
from .pool import Workers

FEWEST_ROUNDS = 6
MOST_EXTENDED = 6  # times the planned rounds, if those leave the ratios too imprecise

# Seconds. A default sweep of MiniLM has one cell and five minutes, of which the rooflines take half a minute.
LEAST_EXTRA, CELL = 12.0, 240.0


class ExtraTime:
    """The time that a cell may spend on more rounds; create it when the cell begins.

    There are at least ``LEAST_EXTRA`` seconds, shared by all groups. There are more if the cell would, at the pace so
    far, end before ``CELL`` seconds: comparing two arms takes half a minute and may well take longer, but a table of
    all arms on a slow machine already takes too long.
    """

    def __init__(self) -> None:
        self._begin = monotonic()
        self._left = LEAST_EXTRA

    def share_of_group(self, started: int, remaining: int, groups: int) -> float:
        """Return the seconds for a group whose planned rounds are over.

        ``started`` arms had their turns so far, ``remaining`` ones will, and ``groups`` are left including this one.
        """
        elapsed = monotonic() - self._begin
        expected_end = elapsed + elapsed / started * remaining
        return max(self._left, CELL - expected_end) / groups

    def spend(self, seconds: float) -> None:
        """Subtract what a group has used."""
        self._left -= seconds


@dataclass(frozen=True)
class Outcome:
    """The baseline that is alive after the rounds, the ratios to it, and the seconds spent on extra rounds.

    ``is_interrupted``: Ctrl-C ended the rounds, so there are fewer than planned.
    """

    baseline: Case | None
    comparisons: Sequence[Comparison]
    extra_seconds: float
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
        return Outcome(None, [], 0.0)
    cases = [baseline, *others]
    turns |= {case: {} for case in cases}
    settings = workers.settings
    planned = planned_rounds(workers.call_seconds(baseline), settings)
    wanted = {case: min(planned, planned_rounds(workers.call_seconds(case), settings)) for case in cases}
    begin = extra_begin = monotonic()
    extra, is_interrupted = 0.0, False
    with workers.watching_others(), suppress(KeyboardInterrupt):
        is_interrupted = True
        for number in range(planned if settings.quick else MOST_EXTENDED * planned):
            if number == planned:
                extra_begin, extra = monotonic(), extra_seconds()
            if number >= planned:
                seconds_per_round = (monotonic() - begin) / number
                if monotonic() - extra_begin + seconds_per_round > extra:
                    break
                if (number - planned) % max(1, planned // 4) == 0:
                    comparisons = _compare(baseline, others, workers, turns)
                    if all(comparison.ratio.is_precise for comparison in comparisons):  # also if there are none
                        break
            total = f"{planned}" if number < planned else f"up to {MOST_EXTENDED * planned}, on an unsteady machine"
            arms = ", ".join(case.arm for case in cases)
            workers.on_step(f"round {number + 1} of {total}: {arms}", min(1.0, number / planned))
            for place in generator.permutation(len(cases)):
                case = cases[int(place)]
                if takes_part(number, wanted[case], planned):
                    samples = workers.sample(case, settings.seconds / wanted[case])
                    turns[case] |= {number: samples} if samples else {}
            previous = baseline
            baseline, others = _live_baseline(baseline, others, workers, turns)
            if baseline is not None and baseline != previous:
                wanted[baseline] = planned  # so that every later round has something to compare with
        is_interrupted = False
    comparisons = _compare(baseline, others, workers, turns)
    return Outcome(baseline, comparisons, monotonic() - extra_begin, is_interrupted)


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


def _compare(baseline: Case | None, others: Sequence[Case], workers: Workers, turns: _Turns) -> list[Comparison]:
    """Return the ratios of the cases that succeeded, from rounds shared with the baseline, if those are enough."""
    if baseline is None or workers.result(baseline).status != "ok":
        return []
    of_baseline = turns[baseline]
    enough = min(FEWEST_ROUNDS, workers.settings.rounds)
    comparisons: list[Comparison] = []
    for case in others:
        of_case = turns[case]
        shared = [number for number in of_case if number in of_baseline]
        if workers.result(case).status == "ok" and len(shared) >= enough:
            ratio = paired_ratio([of_case[number] for number in shared], [of_baseline[number] for number in shared])
            comparisons.append(Comparison(case.id, baseline.id, ratio))
    return comparisons


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
