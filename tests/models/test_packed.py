"""The packed encoder: real tokens without padding, in groups of rows of similar length."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paddle import inference as paddle_inference

import triglot
from triglot.shared import inputs
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


PACKING = ("torch", "paddle")  # JAX compiles for each shape instead


def pytest_generate_tests(metafunc):
    """Run the tests for every framework that packs, of those that the test run names."""
    if "packing_framework" in metafunc.fixturenames:
        named = metafunc.config.getoption("--frameworks").split(",")
        frameworks = [framework for framework in PACKING if framework in named]
        metafunc.parametrize("packing_framework", frameworks, scope="module")


@pytest.fixture(scope="module")
def model(packing_framework):
    return triglot.build(packing_framework, triglot.initialize(CONFIG), mode="compiled")


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


def vectors_only():
    """Return the configuration of an encoder that reads vectors."""
    heads = {"heads_on_top": (), "tied_embeddings": False}
    no_vocabulary = {
        "source_vocabulary": 0,
        "segments": 0,
        "positions": "none",
        "embedding_process": "",
        "pad_id": None,
    }
    return replace(CONFIG, **heads, **no_vocabulary)


def encode_vectors(model, vectors, valid):
    """Encode without the checks of inputs, which refuse NaN and empty rows."""
    inputs = {"source": model.backend.to_tensor(vectors), "valid": model.backend.to_tensor(valid)}
    with model.backend.computing("forward"):
        return model.to_numpy(model.backend.encode(inputs))


@pytest.fixture(scope="module")
def vector_model(packing_framework):
    return triglot.build(packing_framework, triglot.initialize(vectors_only()), mode="compiled")


def ragged_vectors():
    _, valid = ragged(0)
    return np.random.default_rng(0).normal(size=(*valid.shape, CONFIG.hidden_size)).astype(np.float32), valid


@pytest.mark.parametrize("row", [0, 3])  # the longest of its group, whose tokens come first, and another one
def test_nothing_of_a_neighbour_spreads(row, vector_model):
    """Not even NaN, which a product with a weight of zero would keep."""
    vectors, valid = ragged_vectors()
    clean = encode_vectors(vector_model, vectors, valid)
    vectors[row] = float("nan")
    spoiled = encode_vectors(vector_model, vectors, valid)
    assert np.isnan(spoiled[row][valid[row]]).all()
    others = np.arange(8) != row
    assert np.array_equal(spoiled[others], clean[others])


def test_an_empty_row_is_zero_and_changes_no_other(vector_model):
    vectors, valid = ragged_vectors()
    without = encode_vectors(vector_model, vectors[1:], valid[1:])
    valid[0] = False
    encoded = encode_vectors(vector_model, vectors, valid)
    assert not encoded[0].any()
    assert np.array_equal(encoded[1:], without)


SHAPES = [(1, 5), (8, 13), (3, 1), (12, 9), (8, 13)]


def test_every_shape_is_computed_and_results_belong_to_the_caller(model):
    """Later calls, of other shapes and of the same one, do not overwrite the tensors that a call returned."""
    reference = triglot.build("numpy", triglot.initialize(CONFIG))
    generator = np.random.default_rng(0)
    results = []
    for rows, length in SHAPES:
        valid = np.arange(length) < generator.integers(1, length + 1, (rows, 1))
        batch = inputs.encoder_batch(
            CONFIG, generator.integers(0, CONFIG.source_vocabulary, valid.shape), valid, None, None
        )
        results.append((batch, model.prepare("forward", batch)()))
    for batch, (output, heads) in results:
        tokens = batch.source, batch.valid
        np.testing.assert_allclose(model.to_numpy(output), reference.encode(*tokens), rtol=0, atol=1e-5)
        expected = reference.heads(*tokens)
        for name, value in heads.items():
            np.testing.assert_allclose(model.to_numpy(value), expected[name], rtol=0, atol=1e-5)


def test_paddle_builds_one_engine_for_all_shapes(monkeypatch):
    built = []
    create = paddle_inference.create_predictor
    monkeypatch.setattr(paddle_inference, "create_predictor", lambda config: built.append(config) or create(config))
    model = triglot.build("paddle", triglot.initialize(CONFIG), mode="compiled")
    for shape in SHAPES:
        model.encode(np.ones(shape, np.int64))
    assert len(built) == 1


def test_changed_weights_do_not_reach_the_compiled_model(packing_framework):
    """Packing shares modules with the eager model, but its weights are copies."""
    model = triglot.build(packing_framework, triglot.initialize(CONFIG), mode="compiled")
    ids, valid = ragged(0)
    before = model.encode(ids, valid)
    eager = triglot.build(packing_framework, triglot.initialize(CONFIG))
    eager.begin_training(triglot.Plan())
    batch = inputs.encoder_batch(CONFIG, ids, valid, None, None)
    eager.training_step(inputs.taught(CONFIG, batch, np.zeros((*valid.shape, CONFIG.hidden_size), np.float32)))
    assert np.abs(eager.encode(ids, valid) - before).max() > 1e-4
    assert np.array_equal(model.encode(ids, valid), before)


@pytest.mark.usefixtures("without_cpp")
@pytest.mark.parametrize(
    "fields",
    [
        {"activation": "relu"},
        {"activation": "gelu_tanh"},
        {"positions_skip_padding": True},
        {"tied_embeddings": False, "heads_on_top": ("pooler", "masked_lm", "next_sentence")},
        {"heads_on_top": ("token_classifier",), "classes": 3, "tied_embeddings": False},
    ],
    ids=str,
)
def test_variants_of_an_encoder_pass(fields, packing_framework, make_checkpoint, check_small):
    checkpoint = make_checkpoint(replace(CONFIG, **fields))
    report = check_small(checkpoint, packing_framework, mode="compiled", checks=["forward", "invariants"])
    assert report.verdict == "pass", report.divergences


def test_an_encoder_of_vectors_passes(packing_framework, make_checkpoint, check_small):
    report = check_small(make_checkpoint(vectors_only()), packing_framework, mode="compiled", checks=["forward"])
    assert report.verdict == "pass", report.divergences
