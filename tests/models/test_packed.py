"""The packed encoder: real tokens without padding, in groups of rows of similar length."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import triglot
from triglot.shared.inputs.packing import LEAST_ROWS, pack
from triglot.shared.model.recipes import recipe

CONFIG = replace(recipe("bert-base-tiny"), heads_on_top=("pooler", "masked_lm"), tied_embeddings=True)


@given(
    st.lists(st.lists(st.booleans(), min_size=7, max_size=7), min_size=1, max_size=11).filter(
        lambda rows: any(map(any, rows))
    )
)
def test_every_real_token_is_packed_once_into_a_group(rows):
    valid = np.array(rows)
    for skip_padding in (False, True):
        packing = pack(valid, skip_padding=skip_padding)
        assert sorted(packing.tokens) == np.flatnonzero(valid).tolist()
        of_row = packing.tokens // 7
        places = (valid.cumsum(axis=1) - 1 if skip_padding else np.tile(np.arange(7), (len(rows), 1))).ravel()
        assert packing.positions.tolist() == places[packing.tokens].tolist()
        end = 0
        for group in packing.groups:
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


def test_equal_rows_are_one_group_and_others_at_least_a_few():
    full = pack(np.ones((9, 5), np.bool_), skip_padding=False)
    assert [(group.rows, group.valid) for group in full.groups] == [(9, None)]
    ragged = pack(np.arange(12) < np.arange(12, 1, -1)[:, None], skip_padding=False)
    assert [group.rows for group in ragged.groups] == [LEAST_ROWS, LEAST_ROWS, 3]


@pytest.fixture(scope="module")
def model():
    return triglot.build("torch", triglot.initialize(CONFIG), mode="compiled")


def ragged(seed):
    """Ids and rows of these lengths: some alone, some equal, one with padding at the left and inside."""
    generator = np.random.default_rng(seed)
    valid = np.arange(13) < np.array([13, 9, 9, 9, 9, 9, 2, 1])[:, None]
    valid[1] = np.roll(valid[1], 3)
    valid[2, [4, 10]] = valid[2, [10, 4]]
    return generator.integers(0, CONFIG.source_vocabulary, valid.shape), valid


@pytest.mark.parametrize("row", range(8))
def test_a_row_never_sees_its_neighbours(row, model):
    """Not a bit of its result changes with the tokens of the others, as long as these keep their lengths."""
    ids, valid = ragged(0)
    others, _ = ragged(1)
    others[row] = ids[row]
    assert np.array_equal(model.encode(ids, valid)[row], model.encode(others, valid)[row])
    first, second = model.heads(ids, valid), model.heads(others, valid)
    assert all(np.array_equal(first[name][row], second[name][row]) for name in first)


@pytest.mark.parametrize("row", [0, 3])  # the longest of its group, whose tokens come first, and another one
def test_nothing_of_a_neighbour_spreads(row):
    """Not even NaN, which a product with a weight of zero would keep."""
    heads = {"heads_on_top": (), "tied_embeddings": False}
    vectors_only = {"source_vocabulary": 0, "segments": 0, "positions": "none", "embedding_process": "", "pad_id": None}
    config = replace(CONFIG, **heads, **vectors_only)
    model = triglot.build("torch", triglot.initialize(config), mode="compiled")
    _, valid = ragged(0)
    vectors = np.random.default_rng(0).normal(size=(*valid.shape, config.hidden_size)).astype(np.float32)
    inputs = {"source": model.backend.to_tensor(vectors), "valid": model.backend.to_tensor(valid)}
    clean = model.to_numpy(model.backend.encode(inputs))
    inputs["source"][row] = float("nan")
    spoiled = model.to_numpy(model.backend.encode(inputs))
    assert np.isnan(spoiled[row][valid[row]]).all()
    others = np.arange(8) != row
    assert np.array_equal(spoiled[others], clean[others])


@pytest.mark.usefixtures("without_cpp")
@pytest.mark.parametrize(
    "fields", [{"activation": "relu"}, {"activation": "gelu_tanh"}, {"positions_skip_padding": True}], ids=str
)
def test_variants_of_an_encoder_pass(fields, make_checkpoint, check_small):
    checkpoint = make_checkpoint(replace(CONFIG, **fields))
    report = check_small(checkpoint, "torch", mode="compiled", checks=["forward", "invariants"])
    assert report.verdict == "pass", report.divergences
