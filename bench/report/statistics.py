"""Statistics of samples: the percentiles of one case, and the ratio of two cases with its interval.

Two arms take turns, round after round, so a slow minute of the machine affects both. Each round gives one median per
arm and so one ratio, and these ratios are resampled. Single samples are not resampled: those of one round are similar,
so an interval from them would be far too narrow.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from triglot.shared.arrays import Array

# A process is faster or slower than its twin for its whole life, because of where its memory lies, for example. Rounds
# cannot show that. Forty runs of an arm against itself (``make bench-proof``, twice) differed from 1 by 1.09 % (root
# mean square), of which the rounds explain 0.63 %. Every interval is therefore widened by twice the rest (0.88 %),
# added as an independent error. In these two series the twin was faster by 0.5 and 0.8 % on average, and in a third one
# slower by 0.7 %: processes that start in the same order tend to get the same memory. So the difference is taken from
# 1, not from the mean of a series.
PROCESS = 0.018

PRECISE = 0.014  # half the width at which an interval, from its rounds alone, needs no more rounds
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
    """How many times as long one case takes as another: the median of the rounds, and its 95 % interval."""

    median: float
    low: float
    high: float

    @property
    def is_precise(self) -> bool:
        """Whether more rounds would add little: the interval is within 1.4 % of the median, more if that is far from 1.

        Only the width counts, not the position. Measuring until the interval excludes 1 would always find a difference.
        """
        half = np.log(self.high / max(self.low, 1e-9)) / 2
        return bool(np.sqrt(max(half**2 - PROCESS**2, 0)) <= PRECISE + abs(np.log(self.median)) / 10)

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


def paired_ratio(numerator: Sequence[Sequence[float]], denominator: Sequence[Sequence[float]]) -> Ratio:
    """Return the ratio of two cases that took turns, from their samples in each round.

    Raises:
        ValueError: there are no rounds, or the numbers of rounds differ.
    """
    if not numerator or len(numerator) != len(denominator):
        raise ValueError(f"got {len(numerator)} rounds against {len(denominator)}, expected equal numbers, at least 1")
    ratios = [np.median(above) / np.median(below) for above, below in zip(numerator, denominator, strict=True)]
    middle, spread = _resample(np.log(ratios), np.random.default_rng(0))
    if len(ratios) == 1:
        return Ratio(float(np.exp(middle)), 0.0, float("inf"))
    return _with_interval(middle, spread)


def unpaired_ratio(numerator: Sequence[Sequence[float]], denominator: Sequence[Sequence[float]]) -> Ratio:
    """Return the ratio of two cases of different runs. The rounds of each are resampled on their own.

    Raises:
        ValueError: there are no rounds.
    """
    if not numerator or not denominator:
        raise ValueError("there are no rounds to compare")
    generator = np.random.default_rng(0)
    (above, spread_above), (below, spread_below) = (
        _resample(np.log([np.median(samples) for samples in rounds]), generator) for rounds in (numerator, denominator)
    )
    return _with_interval(above - below, spread_above - spread_below)


def _resample(logarithms: Array, generator: np.random.Generator) -> tuple[float, Array]:
    """Return the median, and the differences from it of the medians of values drawn with replacement.

    The bootstrap of a median of few values is coarse, and too narrow by the square root of n / (n - 1), so the
    differences are widened by that factor.
    """
    middle, count = float(np.median(logarithms)), len(logarithms)
    medians = np.median(generator.choice(logarithms, (RESAMPLES, count)), axis=1)
    return middle, (medians - middle) * (count / max(1, count - 1)) ** 0.5


def _with_interval(middle: float, spread: Array) -> Ratio:
    below, above = -np.percentile(spread, 50 * (1 - CONFIDENCE)), np.percentile(spread, 50 * (1 + CONFIDENCE))
    bounds = middle - np.hypot(below, PROCESS), middle + np.hypot(above, PROCESS)
    return Ratio(*(float(np.exp(value)) for value in (middle, *bounds)))


def is_steady(windows: Sequence[Sequence[float]]) -> bool:
    """Return whether warm-up is over: of at least three windows, the last two have medians within 5 %."""
    if len(windows) < 3:
        return False
    before, after = np.median(windows[-2]), np.median(windows[-1])
    return bool(abs(after - before) < 0.05 * before)
