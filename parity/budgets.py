"""The budgets: how far from the truth a value may be. The only place with tolerances, each with its derivation.

A fixed tolerance either raises false alarms or misses bugs, because the rounding error of a correct float32
implementation depends on the weights, the inputs and the depth. So that error is measured. The reference runs in
float32 (for float64: in float64) on the same weights and inputs, ``NOISE_RUNS`` times, each time with its sums in other
random orders. The largest distance from the float64 truth is the noise, and the budget follows from it:

    budget = NOISE_FACTOR * noise + ROUNDING_UNITS * u * max|truth|        (u: the unit roundoff of the dtype)

For bfloat16 and float16 the weights and inputs are rounded to the dtype first. The truth is the float64 run on the
rounded numbers, and the noise comes from float32 runs on them that round every named value to the dtype.
"""

import numpy as np

from triglot.shared.arrays import Array

# On a trained model, correct frameworks measured 0.65 to 1.25 times the noise. The mildest of the usual bugs, a wrong
# epsilon, measured over 1,000 times the noise.
NOISE_FACTOR = 8.0

# In each run a quarter of the rows shares an order, so two runs have eight orders. Four orders were too few: with
# terms that cancel, all four may be lucky by a factor of 13.
NOISE_RUNS = 2

# A value that exceeds its budget is judged again with noise from so many runs, and once more if it still does. Of 160
# wild models (``make audit``), each with thousands of values, eight exceeded a budget from four orders, and none one
# from 128.
CONFIRMING_RUNS = (8, 32)

# The reference may continue from a framework's own values (``trials/forward.py``) if each uses up at most this share of
# its budget, about twice the noise. Then the framework's run is as accurate as a noise run. Two of 2,000 random models
# (``audit/wild.py``) needed this, and the largest share among their values was 18%.
ORDINARY_SHARE = 1 / 4

# Gradients, decoding and the arms of the benchmark are judged once. With one run, one of 1,000 correct comparisons
# exceeded its budget; with four, none of 3,000 did.
UNCONFIRMED_RUNS = 4

# A row has fewer tokens than the whole value, so its noise is less certain. Of several hundred models, two exceeded
# eight times the noise of a row, and none ten times.
ROW_NOISE_FACTOR = 10.0

# An invariant holds in the reference if the change of the batch moves a result by at most this share of a budget. The
# remainder is left for the frameworks' rounding, which uses up at most 13% in a trained MiniLM. Their limit is the
# budget of twice the noise (``trials/invariants.py``).
HOLDING_SHARE = 1 / 8

# The fewest tokens of a channel or a row from which noise is measured. With one token, four runs give four numbers,
# whose maximum was 26 times below a legitimate error.
LEAST_TOKENS = 16

# The noise can happen to be zero, for example for a sum of two numbers. A correct result may still be rounded when it
# is stored, when its inputs were stored, and in a fused multiply-add, each time by one unit.
ROUNDING_UNITS = 4.0

# A framework's float64 gradients become the truth when the reference confirms them (``gradients.py``). Both derivatives
# are sums of rounded products, and over the models of the tests they differed by up to 30 units of the sum of the
# terms. A millionth of the largest gradient of a tensor is a million units.
DERIVATIVE_UNITS = 1024.0

# Gradients shorter than this share of the longest one, and of the loss, are compared on that scale: one that is zero in
# theory holds only rounding errors of the others.
LEAST_GRADIENT = 1e-3

# Float32 gradients count as noise only within this many rounding budgets: 64 times the noise of values. They measured
# up to 9 times that noise where a sum over a softmax is zero in theory. A gradient that is 0.1% too large exceeds the
# rounding budget thousands of times.
EXPLAINED = 8.0

# The rounding error of a constant of Adam, 0.9 or 0.999, which frameworks may keep in float32.
ROUNDING_OF_CONSTANT = 2.0**-25

UNIT_ROUNDOFF = {"float32": 2.0**-24, "float64": 2.0**-53, "bfloat16": 2.0**-8, "float16": 2.0**-11}

# Below 2^-14, float16 rounds to multiples of 2^-24. In the other dtypes some kernels flush subnormal numbers to zero.
LEAST_ROUNDING = {"float32": 2.0**-126, "float64": 2.0**-1022, "bfloat16": 2.0**-126, "float16": 2.0**-25}


def budget(noise: float, magnitude: float, dtype: str) -> float:
    """Return the largest accepted error of a value with this ``noise`` and this largest absolute entry."""
    return float(budgets(np.asarray(noise), np.asarray(magnitude), dtype, NOISE_FACTOR))


def budgets(noise: Array, magnitude: Array, dtype: str, factor: float) -> Array:
    """Return the budget of every value with these ``noise`` and magnitudes, with this ``factor`` for the noise."""
    rounding = np.maximum(UNIT_ROUNDOFF[dtype] * magnitude, LEAST_ROUNDING[dtype])
    return factor * noise + ROUNDING_UNITS * rounding


def noise_in(dtype: str, measured: float) -> float:
    """Return the noise of a gradient in ``dtype`` from the noise measured in float32: it grows with the roundoff."""
    return measured * UNIT_ROUNDOFF[dtype] / UNIT_ROUNDOFF["float32"]


def noise_of_mean(mean: float, terms: int) -> float:
    """Return the float32 rounding error of a mean whose terms are added one after the other.

    The n-th partial sum of N equal terms is n/N of the total, and is rounded by u/sqrt(3) of itself (root mean
    square). The N independent errors add up to sqrt(N)/3 u of the total. The errors of the terms themselves are not
    included.
    """
    return mean * UNIT_ROUNDOFF["float32"] * terms**0.5 / 3


def rounding_of_first_step(rate: float, weight: float, dtype: str) -> float:
    """Return the rounding error of Adam's first step on a weight of this magnitude, whatever its gradient.

    Adam divides by 1 - 0.999^t. Paddle and optax compute that in float32, so at the first step 0.001 is off by 2^-24,
    and the square root halves this relative error. The new weight is rounded when it is stored, and the step may be
    rounded to the precision of the weight before that.
    """
    return rate * ROUNDING_OF_CONSTANT / 0.001 + 2 * UNIT_ROUNDOFF[dtype] * weight
