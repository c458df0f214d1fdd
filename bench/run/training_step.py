"""What the arms that train have in common: how, and under which names they say what came out."""

from collections.abc import Mapping

import numpy as np

from triglot.parity.gradients import named as derived
from triglot.shared.arrays import Array
from triglot.shared.training.plan import BETAS, Plan

__all__ = ["PLAN", "WEIGHTS", "after_a_step", "derived"]

# A rate at which hundreds of steps on the same batch blow nothing up.
PLAN = Plan(rate=1e-4, dropout=False)

WEIGHTS = "weights."


def after_a_step(loss: float, first_moments: Mapping[str, Array], weights: Mapping[str, Array]) -> dict[str, Array]:
    """Loss, gradients and weights after the very first step: what Adam remembers then is a share of the gradient."""
    gradients = {name: np.asarray(moment) / (1 - BETAS[0]) for name, moment in first_moments.items()}
    return derived(loss, gradients) | {WEIGHTS + name: weight for name, weight in weights.items()}
