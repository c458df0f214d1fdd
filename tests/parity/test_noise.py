"""The noise includes how kernels of frameworks round, and the budget follows from the noise."""

import numpy as np
import pytest

from triglot.impls import numpy_nn
from triglot.parity.budgets import budget, noise_in
from triglot.parity.truth import distance


def test_budget_is_eight_times_the_noise_and_four_units_of_the_largest_value():
    assert budget(1e-7, 2.0, "float32") == pytest.approx(8e-7 + 4 * 2.0**-24 * 2, rel=1e-12)
    assert budget(0.0, 2.0, "float64") == 4 * 2.0**-53 * 2
    assert budget(0.0, 1.0, "float16") == 4 * 2.0**-11
    assert budget(0.0, 1e-6, "float16") == 4 * 2.0**-25, "half the distance between float16's smallest numbers"
    assert noise_in("float32", 1e-7) == 1e-7
    assert noise_in("float64", 1e-7) == 1e-7 * 2.0**-29


def test_distance_covers_only_the_selected_entries():
    assert distance(np.array([1.0, 5.0]), np.array([1.5, 1.0]), None) == 4.0
    assert distance(np.array([1.0, 5.0]), np.array([1.5, 1.0]), np.array([True, False])) == 0.5
    assert np.isnan(distance(np.array([np.nan]), np.array([1.0]), None))


def test_noise_includes_the_rounding_of_a_saturated_tanh():
    """NumPy gives exactly 1 where the kernels of frameworks give slightly less, so the noise runs give less too."""
    x = np.full(1000, 12, np.float32)
    assert (numpy_nn.tanh(x) == 1).all()
    with numpy_nn.permuted_contractions(0):
        rounded = numpy_nn.tanh(x)
    assert set(np.unique(rounded)) == {np.float32(1), np.float32(1 - 2.0**-24)}
    assert numpy_nn.tanh(x.astype(np.float64)).dtype == np.float64


def test_noise_includes_sums_that_begin_with_the_bias():
    """Partial sums that start at a bias of 1 round like numbers around 1; the product alone rounds much finer."""
    generator = np.random.default_rng(0)
    x, weight = (generator.standard_normal(shape).astype(np.float32) * 1e-3 for shape in ((64, 300), (300, 1)))
    bias = np.ones(1, np.float32)
    exact = numpy_nn.linear(x.astype(np.float64), weight.astype(np.float64), bias.astype(np.float64))
    bias_first = bias + np.zeros((64, 1), np.float32)
    for term in range(300):
        bias_first += x[:, term : term + 1] * weight[term]
    product_first = numpy_nn.linear(x, weight, bias)
    with numpy_nn.permuted_contractions(0):
        noise = np.abs(numpy_nn.linear(x, weight, bias) - exact).max()
    legitimate = np.abs(bias_first - exact).max()
    assert legitimate > 8 * np.abs(product_first - exact).max()
    assert legitimate <= 8 * noise


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_noise_includes_exact_variances(dtype):
    """Some kernels compute a variance in a wider format. For equal entries it is then zero, but the mean is rounded."""
    x = np.full((64, 108), 207.41972, dtype)
    with numpy_nn.permuted_contractions(0):
        mean, variance = numpy_nn.mean(x), numpy_nn.variance(x)
    exact = (variance == 0) & (mean != x[:, :1])
    assert 8 < exact.sum() < 56


def test_equal_rows_round_differently_in_the_noise():
    """The kernels of frameworks round equal rows differently, depending on where in a block they are."""
    generator = np.random.default_rng(0)
    rows = np.repeat(generator.standard_normal((1, 300)).astype(np.float32), 8, axis=0)
    weight = generator.standard_normal((300, 40)).astype(np.float32)
    assert np.ptp(numpy_nn.linear(rows, weight, None), axis=0).max() == 0
    with numpy_nn.permuted_contractions(0):
        assert np.ptp(numpy_nn.linear(rows, weight, None), axis=0).max() > 0
        assert np.ptp(numpy_nn.mean(rows)) > 0


def test_equal_terms_round_differently_in_the_noise():
    """No order distinguishes them, but the kernels of frameworks divide a sum in different ways."""
    terms = np.full((64, 69), 188.32504, np.float32)
    with numpy_nn.permuted_contractions(0):
        assert np.unique(numpy_nn.mean(terms)).size > 1
        assert np.unique(numpy_nn.linear(terms, np.full((69, 1), 0.1, np.float32), None)).size > 1
