"""Compare what another library or a framework computes with the truth, within the rounding budget."""

from typing import Any

import numpy as np

from triglot.parity.budgets import budget
from triglot.parity.truth import Reference, distance
from triglot.shared import inputs


def random_batch(config, lengths) -> Any:
    """Draw a batch of an encoder with rows of these lengths. Any: its kind follows from the configuration."""
    return inputs.random_batch(config, lengths, np.random.default_rng(0))


def truth_of(checkpoint, batch):
    """Return the truth and the noise of every named value, for float32."""
    return Reference(checkpoint, "float32").truth_of_values(batch, {})


def assert_within_noise(values, truth, selected=None):
    """Assert that float32 values, by name, are as close to the truth as those of a correct implementation."""
    shares = {}
    for name, value in values.items():
        limit = budget(float(truth.noise[name].max()), float(np.abs(truth.values[name]).max()), "float32")
        shares[name] = distance(value, truth.values[name], selected) / limit
    over = {name: share for name, share in shares.items() if not share <= 1}  # NaN is also over
    if over:
        raise AssertionError(", ".join(f"{name}: {share:.3g} times the budget" for name, share in over.items()))
