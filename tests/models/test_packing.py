"""Which tokens are packed where: groups for PyTorch and Paddle, buckets and windows for JAX."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triglot.shared.inputs.buckets import SMALLEST, WINDOW_GROWTH, bucket, lengths_of, windows_of
from triglot.shared.inputs.packing import MOST_ROWS, pack


@pytest.mark.parametrize("limits", [{}, {"most_rows": 40, "most_groups": 2}], ids=["PyTorch", "Paddle"])
@given(st.lists(st.lists(st.booleans(), min_size=7, max_size=7).filter(any), min_size=1, max_size=40))
def test_every_real_token_is_packed_once_into_a_group(limits, rows):
    valid = np.array(rows)
    for skip_padding in (False, True):
        packing = pack(valid, skip_padding=skip_padding)
        assert sorted(packing.tokens) == np.flatnonzero(valid).tolist()
        of_row = packing.tokens // 7
        places = (valid.cumsum(axis=1) - 1 if skip_padding else np.tile(np.arange(7), (len(rows), 1))).ravel()
        assert packing.positions.tolist() == places[packing.tokens].tolist()
        end = 0
        for group in packing.groups(**limits):
            assert group.start == end
            end = group.stop
            own = of_row[group.start : group.stop]
            lengths = [np.count_nonzero(own == row) for row in dict.fromkeys(own)]
            assert lengths == sorted(lengths, reverse=True)
            assert (len(lengths), lengths[0]) == (group.rows, group.length)
            if group.valid is None or group.places is None:
                assert set(lengths) == {group.length}
                continue
            assert group.valid.sum(axis=1).tolist() == lengths
            # Padding shows a token of its own row.
            assert (own[group.places].reshape(group.rows, -1) == [[row] for row in dict.fromkeys(own)]).all()
            assert group.places[group.valid.ravel()].tolist() == list(range(len(own)))
        assert end == len(packing.tokens)


@pytest.mark.parametrize(
    ("lengths", "rows"),
    [
        ([5] * (MOST_ROWS + 3), [MOST_ROWS + 3]),
        (range(2 * MOST_ROWS + 9, MOST_ROWS, -1), [MOST_ROWS, 9]),
        ([12, 6, 5, 2], [2, 1, 1]),
        ([7] + [6] * (MOST_ROWS + 4) + [5], [MOST_ROWS, 6]),
    ],
    ids=["equal", "similar", "different", "equal rows in two groups"],
)
def test_rows_of_similar_length_are_one_group(lengths, rows):
    longest = max(lengths)
    packing = pack(np.arange(longest) < np.array(lengths)[:, None], skip_padding=False)
    assert [group.rows for group in packing.groups()] == rows


def test_the_last_of_a_limited_number_of_groups_has_the_rest():
    packing = pack(np.arange(40) < np.array([[40], [20], [9], [4], [2], [1]]), skip_padding=False)
    assert [group.rows for group in packing.groups(most_rows=6, most_groups=2)] == [2, 4]


@given(st.integers(1, 100_000))
def test_buckets_are_few_and_little_larger(number):
    size = bucket(number)
    assert number <= size < max(number * 9 / 8, number + SMALLEST)
    assert size % SMALLEST == 0
    assert bucket(size) == size
    assert len({bucket(each) for each in range(number + 1, 2 * number + 1)}) <= 9


@given(st.lists(st.integers(1, 70), min_size=1, max_size=11), st.sampled_from([70, 512]))
def test_every_row_fits_into_its_window(lengths, longest):
    lengths = np.array(sorted(lengths, reverse=True))
    size = bucket(int(lengths.sum()))
    windows = windows_of(lengths, size, longest)
    sizes, (starts, padded, bounds) = lengths_of(windows, longest), windows
    assert starts[: len(lengths)].tolist() == [0, *lengths.cumsum()[:-1]]
    assert padded.tolist() == [*lengths, *[0] * (size - len(lengths))]
    assert (bounds[0], bounds[-1]) == (0, len(lengths))
    for window, first, end in zip(sizes, bounds[:-1], bounds[1:], strict=True):
        assert (lengths[first:end] <= window).all()
        assert window <= size
        assert (2 * lengths[first:end] >= window).all() or window == SMALLEST
    # Each length takes time to compile, so none is over four times as long as the longest row, or 32 tokens.
    assert sizes[0] <= max(WINDOW_GROWTH * lengths[0], 2 * SMALLEST)


def test_the_largest_window_grows_in_large_steps():
    """So that a bucket has few programs."""
    lengths = (1, 32, 33, 128, 129, 512)
    largest = [lengths_of(windows_of(np.array([length]), 1024, 512), 512)[0] for length in lengths]
    assert largest == [32, 32, 128, 128, 512, 512]
