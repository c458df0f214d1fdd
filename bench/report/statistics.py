"""Statistics of samples: the percentiles of one case, and the ratio of two cases with its interval.

Two arms take turns, round after round, so a slow minute of the machine affects both. Single samples are not used on
their own: those of one round are similar, so an interval from them would be far too narrow.

The rounds of one process are similar too: for its whole life, a process may be faster or slower than another process of
the same program, because of where its memory lies, for example. So the rounds are spread over several processes. Each
gives one ratio, and the interval is Student's, from these few numbers.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import hypot
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit  # pyright: ignore[reportMissingTypeStubs]

from triglot.shared.arrays import Array

# Forty runs of an arm against itself, in one process each and with freed memory kept (``--allocator keep``), differed
# from 1 by 1.09% (root mean square), of which the rounds explain 0.63%. The rest, 0.88%, is how much two processes
# differ. Every interval is widened by twice that, added as an independent error: one process cannot show it, and a few
# processes may be alike by chance. With the default allocator, two processes of PyTorch in mode eager can differ by
# 20%, which only several processes show.
PROCESS = 0.018

PRECISE = 0.025  # half the width at which an interval needs no more processes
ENOUGH_SHARED = 3  # rounds of a process from which the median of their ratios can be trusted
RESAMPLES = 4_000
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Percentiles:
    """Percentiles 50, 90 and 99, minimum and mean of samples."""

    p50: float
    p90: float
    p99: float
    min: float
    mean: float


@dataclass(frozen=True)
class Ratio:
    """How many times as long one case takes as another, and the 95% interval.

    ``median`` is the median of the rounds or, with several processes, the geometric mean of their medians.
    """

    median: float
    low: float
    high: float

    @property
    def is_precise(self) -> bool:
        """Whether more rounds would add little: the interval is within 2.5% of the median, more if that is far from 1.

        Only the width counts, not the position. Measuring until the interval excludes 1 would always find a difference.
        """
        half = np.log(self.high / max(self.low, 1e-9)) / 2
        return bool(half <= PRECISE + abs(np.log(self.median)) / 10)

    @property
    def noise(self) -> float:
        """The largest difference from 1 in the interval: between a baseline and its twin, all of it is noise."""
        return max(abs(self.low - 1), abs(self.high - 1))

    def __format__(self, digits: str) -> str:
        """Return the ratio and its interval as text; ``digits`` is the format of each number, such as ".2f"."""
        return f"{self.median:{digits}} ({self.low:{digits}} to {self.high:{digits}})"


def percentiles(samples: Sequence[float]) -> Percentiles:
    """Summarise samples."""
    values = np.asarray(samples)
    p50, p90, p99 = (float(value) for value in np.percentile(values, [50, 90, 99]))
    return Percentiles(p50, p90, p99, float(values.min()), float(values.mean()))


def paired_ratio(
    numerator: Mapping[int, Sequence[float]],
    denominator: Mapping[int, Sequence[float]],
    process_of_round: Callable[[int], int],
) -> Ratio:
    """Return the ratio of two cases that took turns, from their samples by the number of the round.

    Raises:
        ValueError: no round is shared.
    """
    shared = [number for number in numerator if number in denominator]
    if not shared:
        raise ValueError("the two cases share no round, expected at least 1")
    ratios = {number: _log_ratio(numerator[number], denominator[number]) for number in shared}
    processes = list(dict.fromkeys(map(process_of_round, shared)))
    if len(processes) == 1:
        return _median_of_rounds(list(ratios.values())).as_ratio()
    of_processes: list[float] = []
    for process in processes:
        of_rounds = [ratios[number] for number in shared if process_of_round(number) == process]
        if len(of_rounds) >= ENOUGH_SHARED:
            of_processes.append(float(np.median(of_rounds)))
        else:
            # A slow case takes part in few rounds. One odd call of the other case in such a round must not decide.
            above, below = (
                [float(np.median(samples)) for number, samples in case.items() if process_of_round(number) == process]
                for case in (numerator, denominator)
            )
            of_processes.append(_log_ratio(above, below))
    return _mean_of_processes(of_processes).as_ratio()


def unpaired_ratio(
    numerator: Sequence[Sequence[float]],
    denominator: Sequence[Sequence[float]],
    above_processes: Sequence[int],
    below_processes: Sequence[int],
) -> Ratio:
    """Return the ratio of two cases of different runs, from their rounds and the numbers of the processes of those.

    Raises:
        ValueError: there are no rounds.
    """
    if not numerator or not denominator:
        raise ValueError("there are no rounds to compare")
    above = _estimate(numerator, above_processes)
    below = _estimate(denominator, below_processes)
    difference = above.middle - below.middle
    return _Estimate(difference, hypot(above.down, below.up), hypot(above.up, below.down)).as_ratio()


class _Estimate(NamedTuple):
    """A logarithm, and how far its interval reaches down and up from it."""

    middle: float
    down: float
    up: float

    def as_ratio(self) -> Ratio:
        """Return the ratio of which this is the logarithm, with the interval widened by ``PROCESS``."""
        low, high = self.middle - hypot(self.down, PROCESS), self.middle + hypot(self.up, PROCESS)
        return Ratio(*(float(np.exp(value)) for value in (self.middle, low, high)))


def _log_ratio(numerator: Sequence[float], denominator: Sequence[float]) -> float:
    return float(np.log(np.median(numerator) / np.median(denominator)))


def _estimate(rounds: Sequence[Sequence[float]], processes: Sequence[int]) -> _Estimate:
    logarithms = np.log([np.median(samples) for samples in rounds])
    of_processes = [float(np.median(logarithms[np.equal(processes, process)])) for process in dict.fromkeys(processes)]
    return _mean_of_processes(of_processes) if len(of_processes) > 1 else _median_of_rounds(logarithms)


def _mean_of_processes(logarithms: Sequence[float]) -> _Estimate:
    """Return the mean with Student's interval."""
    count = len(logarithms)
    half = float(stdtrit(count - 1, (1 + CONFIDENCE) / 2) * np.std(logarithms, ddof=1) / count**0.5)
    return _Estimate(float(np.mean(logarithms)), half, half)


def _median_of_rounds(logarithms: Sequence[float] | Array) -> _Estimate:
    """Return the median with a bootstrap interval.

    The bootstrap of a median of few values is coarse, and too narrow by the square root of n / (n - 1), so it is
    widened by that factor.
    """
    middle, count = float(np.median(logarithms)), len(logarithms)
    if count == 1:
        return _Estimate(middle, float("inf"), float("inf"))
    medians = np.median(np.random.default_rng(0).choice(logarithms, (RESAMPLES, count)), axis=1)
    spread = (medians - middle) * (count / (count - 1)) ** 0.5
    down, up = -np.percentile(spread, 50 * (1 - CONFIDENCE)), np.percentile(spread, 50 * (1 + CONFIDENCE))
    return _Estimate(middle, float(down), float(up))


def is_steady(windows: Sequence[Sequence[float]]) -> bool:
    """Return whether warm-up is over: of at least three windows, the last two have medians within 5%."""
    if len(windows) < 3:
        return False
    before, after = np.median(windows[-2]), np.median(windows[-1])
    return bool(abs(after - before) < 0.05 * before)
