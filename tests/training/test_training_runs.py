"""Whole training runs: every framework learns the same, step by step, and resumes what another one began.

Two training runs never agree to the last bit, and their distance grows with every step. Where the input of a ReLU is
close to zero, it grows suddenly. How fast depends on the model and the data, so it is measured: the same framework is
trained again from starting weights that are off by one ulp of float32. ``make training`` compares 50 steps, and the
losses after 300; CI compares 12 steps.
"""

from functools import cache

import numpy as np
import pytest

import triglot
from triglot import impls
from triglot.shared.checkpoint import Checkpoint

PERTURBED = 4  # runs from weights that are off by an ulp; the noise is their largest distance
FACTOR = 8  # the factor between noise and budget in parity/budgets.py
PLAN = triglot.Plan(dropout=False)
LENGTH = triglot.recipes()["translation"].target_max_length  # the most labels in a row

# All tests that need these runs share a process, so that each run happens once.
pytestmark = pytest.mark.xdist_group("training")


@cache
def start(seed=None):
    """Return the starting weights of the recipe. With a seed, each weight is moved up or down by one ulp."""
    checkpoint = triglot.initialize("translation", 0)
    if seed is None:
        return checkpoint
    generator = np.random.default_rng(seed)
    tensors = {}
    for name, tensor in checkpoint.tensors.items():
        beyond = np.where(generator.random(tensor.shape) < 0.5, np.float32(-9), np.float32(9))
        tensors[name] = np.nextafter(tensor, beyond)
    return Checkpoint(checkpoint.config, tensors)


@pytest.fixture
def steps(pytestconfig):
    """The number of steps to compare one by one."""
    return min(50, pytestconfig.getoption("--training-steps"))


@cache
def trained(framework, steps, seed=None):
    return triglot.train(start(seed), framework, steps=steps, plan=PLAN)


@cache
def spread(framework, steps):
    """Return for each step the largest distance so far between the losses of perturbed and unperturbed runs."""
    unperturbed = losses(trained(framework, steps))
    distances = [np.abs(losses(trained(framework, steps, seed)) - unperturbed) for seed in range(PERTURBED)]
    return np.maximum.accumulate(np.max(distances, axis=0))


def losses(checkpoint):
    assert checkpoint.training is not None
    return np.asarray(checkpoint.training.history.loss, np.float64)


def compare(values, expected, *frameworks):
    """Compare step by step. Up to ``FACTOR`` times the largest spread of the ``frameworks`` is allowed."""
    # A loss is the mean of n numbers, and each framework adds them in its own order. The rounding errors of a sum are a
    # random walk: half an ulp times the root of n (Higham and Mary 2019). At first there is no other difference.
    rounding = 2 * np.sqrt(PLAN.batch_size * LENGTH) * 2.0**-24 * expected
    allowed = FACTOR * np.max([spread(name, len(values)) for name in frameworks], axis=0) + rounding
    distance = np.abs(values - expected)
    late = np.flatnonzero(distance > allowed)
    assert not late.size, f"step {late[0] + 1}: {distance[late[0]]:.2g} apart, allowed {allowed[late[0]]:.2g}"


@pytest.fixture
def other(framework):
    """The framework to compare with: the first one, or for the first one the second."""
    return next(name for name in impls.FRAMEWORKS if name != framework)


def test_the_losses_agree_step_by_step(framework, other, steps):
    compare(losses(trained(framework, steps)), losses(trained(other, steps)), framework, other)


def test_a_wrong_rate_is_noticed(steps):
    """Test the guard itself with a rate that is off by a twentieth, in the framework whose losses spread most."""
    wrong = triglot.train(start(), "jax", steps=steps, plan=triglot.Plan(dropout=False, rate=2e-3 * 1.05))
    with pytest.raises(AssertionError, match=r"^step \d+: .* apart, allowed"):
        compare(losses(wrong), losses(trained("jax", steps)), "jax")


@pytest.mark.parametrize("shift", [0, 1])
def test_training_resumes_in_the_same_and_in_another_framework(framework, shift, steps, tmp_path):
    """Resume from a file. In the same framework, the losses are the same to the bit."""
    frameworks = tuple(impls.FRAMEWORKS)
    later = frameworks[(frameworks.index(framework) + shift) % len(frameworks)]
    triglot.save(trained(framework, steps // 2), tmp_path / "run.npz")
    resumed = triglot.train(triglot.load(tmp_path / "run.npz"), later, steps=steps)
    if later == framework:
        np.testing.assert_array_equal(losses(resumed), losses(trained(framework, steps)))
    compare(losses(resumed), losses(trained(framework, steps)), framework, later)
    assert len(losses(resumed)) == steps


def test_in_the_end_the_losses_are_within_five_percent(framework, other, pytestconfig):
    steps = pytestconfig.getoption("--training-steps")
    ours, theirs = (losses(trained(name, steps)) for name in (framework, other))
    assert ours[-5:].mean() < 0.97 * ours[:5].mean(), "the model has learnt something"
    assert ours[-5:].mean() == pytest.approx(theirs[-5:].mean(), rel=0.05)


@pytest.mark.long(framework="jax")
def test_dropout_drops_the_same_numbers_everywhere(framework, other, steps):
    """NumPy draws the masks."""
    ours, theirs = (
        losses(triglot.train(start(), name, steps=steps, plan=triglot.Plan())) for name in (framework, other)
    )
    compare(ours, theirs, framework, other)
    assert np.abs(ours - losses(trained(framework, steps))).mean() > 1e-3, "dropout does something"
