"""Whole trainings, side by side: every framework learns the same, step by step, and goes on where another stopped.

Two trainings never agree to the last bit, and each step carries what came before it further apart; where a ReLU is
within a rounding of its kink, all at once. How far is decided by the model and the data, so it is measured: the same
framework from starting weights that are off by one ulp of float32. ``make training`` compares 50 steps, and what
300 come to; CI is content with 20.
"""

from functools import cache

import numpy as np
import pytest

import triglot
from triglot import impls
from triglot.shared.checkpoint import Checkpoint

PERTURBED = 4  # runs from weights off by an ulp; their largest distance is the measure
FACTOR = 8  # as for every other noise that few runs measure, see parity/budgets.py
PLAN = triglot.Plan(dropout=False)
LENGTH = triglot.recipes()["translation"].target_max_length  # labels of a row, at most

# Whatever needs these runs shares one process, so that each is made once.
pytestmark = pytest.mark.xdist_group("training")


@cache
def start(seed=None):
    """The recipe's starting weights; with a seed, each one ulp up or down."""
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
    """How many steps are compared one by one."""
    return min(50, pytestconfig.getoption("--training-steps"))


@cache
def trained(framework, steps, seed=None):
    return triglot.train(start(seed), framework, steps=steps, plan=PLAN)


@cache
def spread(framework, steps):
    """For each step, the largest distance so far of the losses from an ulp away."""
    straight = losses(trained(framework, steps))
    distances = [np.abs(losses(trained(framework, steps, seed)) - straight) for seed in range(PERTURBED)]
    return np.maximum.accumulate(np.max(distances, axis=0))


def losses(checkpoint):
    assert checkpoint.training is not None
    return np.asarray(checkpoint.training.history.loss, np.float64)


def compare(found, expected, *frameworks):
    """Step by step within ``FACTOR`` times the larger spread of the frameworks that had a part in it."""
    # A loss is a mean of n numbers, which each adds up in its own order. The roundings of a sum are a random walk: half
    # an ulp times the root of n (Higham and Mary 2019), in both of them. At first nothing else sets them apart.
    rounding = 2 * np.sqrt(PLAN.batch_size * LENGTH) * 2.0**-24 * expected
    allowed = FACTOR * np.max([spread(name, len(found)) for name in frameworks], axis=0) + rounding
    distance = np.abs(found - expected)
    late = np.flatnonzero(distance > allowed)
    assert not late.size, f"step {late[0] + 1}: {distance[late[0]]:.2g} apart, allowed {allowed[late[0]]:.2g}"


@pytest.fixture
def other(framework):
    """The framework to compare with: the first one, or for that the second."""
    return next(name for name in impls.FRAMEWORKS if name != framework)


def test_the_losses_agree_step_by_step(framework, other, steps):
    compare(losses(trained(framework, steps)), losses(trained(other, steps)), framework, other)


def test_a_wrong_rate_is_noticed(steps):
    """The guard itself: a rate that is off by a twentieth, under the allowance of the framework with the largest."""
    wrong = triglot.train(start(), "jax", steps=steps, plan=triglot.Plan(dropout=False, rate=2e-3 * 1.05))
    with pytest.raises(AssertionError, match=r"^step \d+: .* apart, allowed"):
        compare(losses(wrong), losses(trained("jax", steps)), "jax")


@pytest.mark.parametrize("later", impls.FRAMEWORKS)
def test_a_training_goes_on_in_another_framework(framework, later, steps, tmp_path):
    """For all ordered pairs, through a file; with itself as the later one, it is to the bit."""
    triglot.save(trained(framework, steps // 2), tmp_path / "run.npz")
    resumed = triglot.train(triglot.load(tmp_path / "run.npz"), later, steps=steps)
    if later == framework:
        np.testing.assert_array_equal(losses(resumed), losses(trained(framework, steps)))
    compare(losses(resumed), losses(trained(framework, steps)), framework, later)
    assert len(losses(resumed)) == steps


def test_in_the_end_the_losses_are_within_five_percent(framework, other, pytestconfig):
    steps = pytestconfig.getoption("--training-steps")
    ours, theirs = (losses(trained(name, steps)) for name in (framework, other))
    assert ours[-5:].mean() < 0.97 * ours[:5].mean(), "it has learnt something"
    assert ours[-5:].mean() == pytest.approx(theirs[-5:].mean(), rel=0.05)


def test_dropout_drops_the_same_numbers_everywhere(framework, other, steps):
    """With dropout on, by the masks that NumPy draws."""
    ours, theirs = (
        losses(triglot.train(start(), name, steps=steps, plan=triglot.Plan())) for name in (framework, other)
    )
    compare(ours, theirs, framework, other)
    assert np.abs(ours - losses(trained(framework, steps))).mean() > 1e-3, "dropout does something"
