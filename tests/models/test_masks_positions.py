"""Canonical masks are those written by hand, and position tables follow the formula."""

import math

import numpy as np
import pytest

from triglot.shared.model import masks
from triglot.shared.model.positions import sinusoidal, sinusoidal_per_dimension

VALID = np.array([[True, True, False], [True, False, False]])
PADDING = np.array([[[[True, True, False]]], [[[True, False, False]]]])
CAUSAL = np.array([[[[True, False, False], [True, True, False], [True, True, True]]]])
COMBINED = np.array(
    [
        [[[True, False, False], [True, True, False], [True, True, False]]],
        [[[True, False, False], [True, False, False], [True, False, False]]],
    ]
)


def assert_same_mask(mask, expected):
    assert mask.dtype == np.bool_
    assert mask.shape == expected.shape
    np.testing.assert_array_equal(mask, expected)


def test_padding_hides_padding_from_every_query():
    assert_same_mask(masks.padding(VALID), PADDING)


def test_causal_shows_each_position_itself_and_what_came_before():
    assert_same_mask(masks.causal(3), CAUSAL)
    assert_same_mask(masks.causal(1), np.ones((1, 1, 1, 1), np.bool_))


def test_combining_allows_what_both_masks_allow():
    assert_same_mask(masks.combine(PADDING, CAUSAL), COMBINED)
    assert_same_mask(masks.combine(CAUSAL, PADDING), COMBINED)


def test_all_masks_are_the_three_by_name():
    found = masks.all_masks(VALID)
    assert list(found) == ["padding", "causal", "combined"]
    assert_same_mask(found["padding"], PADDING)
    assert_same_mask(found["causal"], CAUSAL)
    assert_same_mask(found["combined"], COMBINED)


@pytest.mark.parametrize(("length", "hidden_size"), [(40, 6), (37, 24), (5, 7), (3, 1)])
def test_sinusoidal_is_the_formula(length, hidden_size):
    expected = np.empty((length, hidden_size))
    for position in range(length):
        for dimension in range(hidden_size):
            angle = position / math.pow(10000, 2 * (dimension // 2) / hidden_size)
            expected[position, dimension] = math.cos(angle) if dimension % 2 else math.sin(angle)
    table = sinusoidal(length, hidden_size)
    assert table.dtype == np.float64
    assert table.shape == expected.shape
    # The angle, below 40, is off by at most 8 units of 2^-52 after the exponent, the power and the quotient.
    np.testing.assert_allclose(table, expected, rtol=0, atol=(40 * 8 + 2) * 2.0**-52)


def test_sinusoidal_starts_with_sine_0_and_cosine_0():
    np.testing.assert_array_equal(sinusoidal(2, 5)[0], [0, 1, 0, 1, 0])
    assert sinusoidal(2, 5)[1, 0] == math.sin(1)


@pytest.mark.parametrize(("length", "hidden_size"), [(40, 6), (37, 24), (5, 7), (3, 1)])
def test_sinusoidal_per_dimension_is_the_formula_of_article_000(length, hidden_size):
    expected = np.empty((length, hidden_size))
    for position in range(length):
        for dimension in range(hidden_size):
            angle = position / math.pow(10000, dimension / hidden_size)
            expected[position, dimension] = math.cos(angle) if dimension % 2 else math.sin(angle)
    table = sinusoidal_per_dimension(length, hidden_size)
    assert table.dtype == np.float64
    assert table.shape == expected.shape
    # As above.
    np.testing.assert_allclose(table, expected, rtol=0, atol=(40 * 8 + 2) * 2.0**-52)


def test_the_two_tables_agree_where_their_angles_do():
    """They agree in the even dimensions. In article 000, the odd ones have their own angle."""
    pairwise, per_dimension = sinusoidal(9, 8), sinusoidal_per_dimension(9, 8)
    np.testing.assert_allclose(per_dimension[:, 0::2], pairwise[:, 0::2], rtol=0, atol=(9 * 8 + 2) * 2.0**-52)
    assert (np.abs(per_dimension[1:, 1::2] - pairwise[1:, 1::2]) > 1e-7).all()


@pytest.mark.parametrize("table_of", [sinusoidal, sinusoidal_per_dimension])
def test_a_position_table_is_made_once_and_cannot_be_written(table_of):
    table = table_of(4, 6)
    assert table_of(4, 6) is table
    with pytest.raises(ValueError, match="read-only"):
        table[0, 0] = 1
