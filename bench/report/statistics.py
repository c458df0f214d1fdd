"""What samples say: percentiles of one case, and the ratio of two with the interval in which it lies.

Two arms take turns, round after round, so a slow minute of the machine weighs on both. A round gives one median of each
and so one ratio; the ratios of the rounds are what is resampled. Single samples are not: those of one round lie close
together, and an interval from them would be far too narrow.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from triglot.shared.arrays import Array

# A process is slower or faster than its twin for all its life, by where its memory lies, say, and no round can see it.
# Forty runs of an arm against itself (twice ``make bench-proof``) differed from 1 by 1.09 % (root mean square), of
# which the rounds explain 0.63 %: so every interval is wider by twice the rest, 0.88 %, as independent errors add up.
# In these two series the twin was faster by 0.5 and 0.8 % on average, and in a third one slower by 0.7 %: what starts
# in the same order may well get the same memory. So what they differ by is from 1, not from the mean of a series.
PROCESS = 0.018

PRECISE = 0.014  # half of an interval, by its rounds alone, that needs no more of them
RESAMPLES = 4_000
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Ratio:
    """How many times as long one case takes as another: the median of the rounds, and its 95 % interval."""

    median: float
    low: float
    high: float

    @property
    def is_precise(self) -> bool:
        """Whether more rounds would add little: they leave 1.4 % to either side, or somewhat more, far from 1.

        It matters less whether an arm takes 2.5 or 2.6 times as long. Where the interval lies does not count, only how
        wide it is: whoever measured on until it left 1 would always find a difference.
        """
        half = np.log(self.high / max(self.low, 1e-9)) / 2
        return bool(np.sqrt(max(half**2 - PROCESS**2, 0)) <= PRECISE + abs(np.log(self.median)) / 10)


def summary(samples: Sequence[float]) -> dict[str, float]:
    """Percentiles 50, 90 and 99, least and mean of ``samples``."""
    given = np.asarray(samples)
    half, most, nearly_all = np.percentile(given, [50, 90, 99])
    return {
        "p50": float(half),
        "p90": float(most),
        "p99": float(nearly_all),
        "min": float(given.min()),
        "mean": float(given.mean()),
    }


def ratio(numerator: Sequence[Sequence[float]], denominator: Sequence[Sequence[float]]) -> Ratio:
    """The ratio of two cases from their samples, round by round.

    The logarithms of the ratios are resampled with replacement. The bootstrap of a median of few values is coarse and
    too narrow by the square root of n / (n - 1), so its spread is widened by that.

    Raises:
        ValueError: there are no rounds, or not the same number of both.
    """
    if not numerator or len(numerator) != len(denominator):
        raise ValueError(f"{len(numerator)} rounds against {len(denominator)}; expected as many, and at least one")
    logarithms = np.log(
        [np.median(ours) / np.median(theirs) for ours, theirs in zip(numerator, denominator, strict=True)]
    )
    middle = float(np.median(logarithms))
    count = len(logarithms)
    if count == 1:
        return Ratio(float(np.exp(middle)), 0.0, float("inf"))
    drawn = np.random.default_rng(0).choice(logarithms, (RESAMPLES, count))
    spread = (np.median(drawn, axis=1) - middle) * (count / (count - 1)) ** 0.5
    return _around(middle, spread)


def unpaired(numerator: Sequence[Sequence[float]], denominator: Sequence[Sequence[float]]) -> Ratio:
    """The ratio of two cases of different runs: the rounds of each are resampled on their own.

    Raises:
        ValueError: there are no rounds.
    """
    if not numerator or not denominator:
        raise ValueError("there are no rounds to compare")
    generator = np.random.default_rng(0)
    drawn: list[Array] = []
    middles: list[float] = []
    for rounds in (numerator, denominator):
        logarithms = np.log([np.median(samples) for samples in rounds])
        count = len(logarithms)
        middles.append(float(np.median(logarithms)))
        spread = np.median(generator.choice(logarithms, (RESAMPLES, count)), axis=1) - middles[-1]
        drawn.append(spread * (count / max(1, count - 1)) ** 0.5)
    return _around(middles[0] - middles[1], drawn[0] - drawn[1])


def _around(middle: float, spread: Array) -> Ratio:
    below, above = -np.percentile(spread, 50 * (1 - CONFIDENCE)), np.percentile(spread, 50 * (1 + CONFIDENCE))
    bounds = middle - np.hypot(below, PROCESS), middle + np.hypot(above, PROCESS)
    return Ratio(*(float(np.exp(value)) for value in (middle, *bounds)))


def is_steady(windows: Sequence[Sequence[float]], share: float = 0.05) -> bool:
    """Whether warm-up is over: the medians of the last two windows of samples, of three at least, are that close."""
    if len(windows) < 3:
        return False
    before, after = np.median(windows[-2]), np.median(windows[-1])
    return bool(abs(after - before) < share * before)


def floor_of(again: Mapping[str, Ratio]) -> float:
    """The noise floor: the largest difference from 1 that an arm shows against itself, as a share."""
    bounds: list[float] = [max(abs(value - 1) for value in (ratio.low, ratio.high)) for ratio in again.values()]
    return max(bounds, default=0.0)
