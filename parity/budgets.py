"""How far from the truth a value may lie: the one place with tolerances, each with its derivation.

A fixed tolerance either cries wolf or misses bugs: what a correct float32 implementation may be off by depends on
the weights, the inputs and the depth. So it is measured: the reference runs in float32 on the same weights and
inputs, with its sums in ``NOISE_RUNS`` random orders, and its largest distance from the float64 truth is the noise.

    budget = NOISE_FACTOR * noise + ROUNDING_UNITS * u * max|truth|

``NOISE_FACTOR`` 8: on a trained model the frameworks were seen at 0.65 to 1.25 times the noise, and the mildest of
the usual bugs, a wrong epsilon, at over 1,000 times. ``NOISE_RUNS`` 4: with one run, one of 1,000 correct
comparisons exceeded its budget; with four, none of 3,000 did. ``ROUNDING_UNITS`` 4: where the noise happens to be
zero (a sum of two numbers, say), a correct result may still be rounded at its store, at the bounds of its inputs and
by a fused multiply-add, each time by one unit roundoff u.

The noise of float64 is that of float32, scaled down. In bfloat16 and float16 the weights and the inputs are rounded
first; the truth is the float64 run on those, and the noise a float32 run on those that rounds every named value to the
dtype.
"""

NOISE_FACTOR = 8.0
NOISE_RUNS = 4
ROUNDING_UNITS = 4.0

# Gradients are confirmed before they are judged (``gradients.py``). A float64 derivative of a framework and that of the
# reference are sums of rounded products, and each term errs by some units of what flowed into it: over the models of
# the tests they were seen to differ by 30 units of the sum of the terms. A millionth of the largest gradient of a
# tensor is a million of them.
DERIVATIVE_UNITS = 1024.0

# How many budgets of what is explained float32 gradients may be off by, to be a measure of noise: 64 times the noise of
# values. They were seen at 9 times that, where a sum over a softmax is zero in theory alone; a gradient that is 0.1 %
# too large is at thousands.
EXPLAINED = 8.0

UNIT_ROUNDOFF = {"float32": 2.0**-24, "float64": 2.0**-53, "bfloat16": 2.0**-8, "float16": 2.0**-11}

# Below 2^-14, float16 rounds to multiples of 2^-24; the least numbers of the others are too small to matter.
LEAST_ROUNDING = {"float32": 0.0, "float64": 0.0, "bfloat16": 0.0, "float16": 2.0**-25}


def noise_of_mean(mean: float, terms: int) -> float:
    """What adding up the terms of a mean, one after the other, is off by in float32.

    The n-th partial sum of like terms, n/N of the whole, is rounded by u/sqrt(3) of itself in the quadratic mean; the N
    independent errors add up to sqrt(N)/3 u of the whole. The values of the terms are no part of that.
    """
    return mean * UNIT_ROUNDOFF["float32"] * terms**0.5 / 3


def rounding_of_first_step(rate: float, weight: float, dtype: str) -> float:
    """What may be added to the first step of Adam on a weight of that magnitude, whatever the gradient.

    Adam divides by 1 - 0.999^t; Paddle and optax keep that in float32, so it errs by 2^-24 of 0.001 at the first step,
    half of it under the root. The weight is rounded at its store, and before that the step may have been, to it.
    """
    return rate * 2.0**-25 / 0.001 + 2 * UNIT_ROUNDOFF[dtype] * weight


def noise_in(dtype: str, measured: float) -> float:
    """The noise of ``dtype`` from what was measured: rounding errors scale with the unit roundoff.

    Float64 is measured by its float32 run, the others as they are.
    """
    return measured * UNIT_ROUNDOFF["float64"] / UNIT_ROUNDOFF["float32"] if dtype == "float64" else measured


def budget(noise: float, magnitude: float, dtype: str) -> float:
    """The largest accepted error of a value whose noise is ``noise`` and whose largest entry is ``magnitude``."""
    rounding = max(UNIT_ROUNDOFF[dtype] * magnitude, LEAST_ROUNDING[dtype])
    return NOISE_FACTOR * noise + ROUNDING_UNITS * rounding
