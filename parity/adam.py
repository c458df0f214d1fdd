"""The truth of one step of Adam (Kingma and Ba 2015, algorithm 1), whatever the moments before it.

The moments are judged against the true gradients. The weights are judged against the moments that the framework itself
arrived at, because where a gradient is nearly zero, Adam divides one rounding error by another.
"""

from collections.abc import Iterator, Mapping

import numpy as np

from triglot.shared.arrays import Array
from triglot.shared.model.config import ModelConfig
from triglot.shared.model.schema import parameters
from triglot.shared.training.plan import BETAS, EPSILON, Moments, Plan

from .budgets import ROUNDING_OF_CONSTANT, ROUNDING_UNITS, UNIT_ROUNDOFF
from .gradients import GradientTruth
from .judge import diverged, judge_error, mismatch
from .output_names import FIRST_MOMENTS, GRADIENTS, SECOND_MOMENTS, WEIGHTS
from .report import Judgement
from .truth import distance

# The rate falls every three steps, so the first step and the resumed one have different rates.
PLAN = Plan(rate=0.01, decay=0.25, epochs_per_decay=1, samples_per_epoch=12, batch_size=4)
STEPS = 5  # made before training resumes
_SIZE = 0.01  # of the gradients that the drawn moments stand for


def drawn_moments(config: ModelConfig) -> Moments:
    """Return the moments from which training resumes."""
    generator = np.random.default_rng(STEPS)
    shapes = {name: parameter.shape for name, parameter in parameters(config).items()}
    first = {name: _SIZE * generator.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    second = {name: _SIZE**2 * (0.5 + generator.random(shape, np.float32)) for name, shape in shapes.items()}
    return Moments(STEPS, first, second)


def judge_step(
    before: Mapping[str, Array],
    moments: Moments | None,
    truth: GradientTruth,
    results: Mapping[str, Array],
    run: str,
    dtype: str,
) -> Iterator[Judgement]:
    """Judge moments and weights after a step. ``results`` holds them under names that begin with ``run``.

    ``before``: the weights. ``moments``: those before the step; None: none were made.
    """
    steps = moments.steps if moments else 0
    unit = ROUNDING_UNITS * UNIT_ROUNDOFF[dtype]
    for name, weight in before.items():
        gradient, limit = truth.values[GRADIENTS + name], truth.budget(GRADIENTS + name, dtype)
        zeros = np.zeros(weight.shape)
        first, second = (moments.first[name], moments.second[name]) if moments else (zeros, zeros)
        limit_of_square = (2 * float(np.abs(gradient).max(initial=0.0)) + limit) * limit
        parts = (
            (FIRST_MOMENTS, first, gradient, limit, BETAS[0]),
            (SECOND_MOMENTS, second, gradient**2, limit_of_square, BETAS[1]),
        )
        moments_found: list[Array] = []
        for part, moment, change, uncertain, beta in parts:
            key = f"{run}{part}{name}"
            value = results.get(key)
            wrong = mismatch(value, weight.shape, dtype)
            if value is None or wrong:
                yield diverged(key, wrong)
                break
            expected = beta * moment.astype(np.float64) + (1 - beta) * change
            sizes = [float(np.abs(array).max(initial=0.0)) for array in (expected, moment, change)]
            rounding = unit * sizes[0] + ROUNDING_OF_CONSTANT * (sizes[1] + sizes[2])
            yield judge_error(key, distance(value, expected), (1 - beta) * uncertain + rounding)
            moments_found.append(value.astype(np.float64))
        key = f"{run}{WEIGHTS}{name}"
        value = results.get(key)
        wrong = mismatch(value, weight.shape, dtype)
        if value is None or wrong or len(moments_found) < len(parts):
            yield diverged(key, wrong or "it cannot be judged without its moments, one of which is wrong")
            continue
        first, second = (each / (1 - beta ** (steps + 1)) for each, beta in zip(moments_found, BETAS, strict=True))
        step = PLAN.rate_at(steps) * first / (np.sqrt(second) + EPSILON)
        longest, largest = float(np.abs(step).max(initial=0.0)), float(np.abs(weight).max(initial=0.0))
        # A correction of 1 - 0.999^t that is kept in float32 is off by that constant's rounding, half under the root.
        corrections = sum(ROUNDING_OF_CONSTANT / (1 - beta ** (steps + 1)) for beta in BETAS)
        allowed = longest * (corrections + 2 * unit) + unit * largest
        yield judge_error(key, distance(value, weight.astype(np.float64) - step), allowed)
