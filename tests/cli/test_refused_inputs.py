"""Inputs that are refused, with the same words in Python and on the command line."""

import numpy as np
import pytest
from refusals import BERT, Canary, assert_refused, raw_pickle, refusal, run_process, torch_file, unchanged

import triglot
from triglot.shared import inputs
from triglot.shared.errors import InputError
from triglot.shared.model.recipes import recipe

# Inputs for the tiny ERNIE: 101 tokens, 4 segments, 16 tasks, at most 37 tokens per row.

IDS = np.array([[1, 2, 3], [4, 5, 6]])
INPUTS = {
    "token below": ({"token_ids": IDS - 2}, "token_ids.*-1.*expected ids from 0 to 100"),
    "token above": ({"token_ids": IDS + 95}, "token_ids.*101.*expected ids from 0 to 100"),
    "token far above": ({"token_ids": IDS + 2**32}, f"token_ids.*{2**32 + 6}.*expected ids from 0 to 100"),
    "segment below": ({"segment_ids": IDS - 3}, "segment_ids.*-2.*expected ids from 0 to 3"),
    "segment above": ({"segment_ids": IDS // 4 + 3}, "segment_ids.*4.*expected ids from 0 to 3"),
    "task below": ({"task_ids": -IDS}, "task_ids.*-6.*expected ids from 0 to 15"),
    "task above": ({"task_ids": IDS + 10}, "task_ids.*16.*expected ids from 0 to 15"),
    "tokens that are not integers": ({"token_ids": IDS * 1.0}, r"token_ids.*float64 \(2, 3\).*expected integers"),
    "tokens of one row": ({"token_ids": IDS[0]}, r"token_ids.*int64 \(3,\).*expected integers \(B, S\)"),
    "segments of another shape": (
        {"segment_ids": IDS[:, :2]},
        r"segment_ids.*int64 \(2, 2\).*expected integers \(2, 3\)",
    ),
    "tasks that are not integers": (
        {"task_ids": IDS * 0.5},
        r"task_ids.*float64 \(2, 3\).*expected integers \(2, 3\)",
    ),
    "too long": ({"token_ids": np.ones((1, 38), np.int64)}, "length.*38.*37"),
    "mask of another shape": ({"valid": np.ones((3, 2), np.bool_)}, r"valid.*bool \(3, 2\).*expected bool \(2, 3\)"),
    "mask of another dtype": ({"valid": np.full((2, 3), 2)}, r"valid.*int64 \(2, 3\).*expected bool \(2, 3\)"),
    "no rows": ({"token_ids": IDS[:0]}, r"empty.*\(0, 3\).*at least one row"),
    "no tokens": ({"token_ids": IDS[:, :0]}, r"empty.*\(2, 0\).*at least one row"),
    "a row without a real token": (
        {"valid": np.array([[True, False, False], [False, False, False]])},
        "row 1 of valid.*no real token",
    ),
}


@pytest.fixture(scope="module")
def built():
    """A function that returns the model of an implementation and builds each only once."""
    checkpoint, models = triglot.initialize("ernie-base-tiny"), {}

    def get(implementation):
        if implementation not in models:
            models[implementation] = triglot.build(implementation, checkpoint)
        return models[implementation]

    return get


@pytest.mark.parametrize("kind", INPUTS)
def test_an_input_that_does_not_fit_is_refused_by_every_implementation(kind, implementation, built):
    arrays, pattern = INPUTS[kind]
    model = built(implementation)
    for method in (model.encode, model.heads):
        with refusal(InputError, pattern):
            method(**{"token_ids": IDS, **arrays})


@pytest.mark.parametrize("kind", INPUTS)
def test_an_input_that_does_not_fit_is_refused_on_the_command_line(kind, workplace, command):
    arrays, pattern = INPUTS[kind]
    np.savez(workplace / "inputs.npz", **{"token_ids": IDS, **arrays})
    with unchanged(workplace):
        assert_refused(command("parity", "ernie-base-tiny", "--inputs", "inputs.npz", "--json", "r.json"), pattern)
        with refusal(InputError, pattern):
            inputs.read_batch(recipe("ernie-base-tiny"), workplace / "inputs.npz")


def test_ids_that_a_model_does_not_have(workplace, command):
    np.savez(workplace / "inputs.npz", token_ids=IDS, task_ids=IDS)
    assert_refused(command("parity", "bert-base-tiny", "--inputs", "inputs.npz"), "task_ids.*this model has none")


@pytest.mark.parametrize(
    ("vectors", "pattern"),
    [
        (np.zeros((2, 3, 23), np.float32), r"input.*float32 \(2, 3, 23\).*expected float.*\(B, S, 24\).*vocabulary"),
        (IDS, r"input.*int64 \(2, 3\).*expected float.*\(B, S, 24\).*vocabulary"),
        (np.full((1, 2, 24), np.nan), "input.*not finite.*expected finite"),
    ],
    ids=["size", "dtype", "NaN"],
)
def test_vectors_that_do_not_fit(vectors, pattern, workplace, command):
    np.savez(workplace / "inputs.npz", token_ids=vectors)
    with unchanged(workplace):
        assert_refused(command("parity", "dygraph-tiny", "--inputs", "inputs.npz"), pattern)


def npz_with(**arrays):
    return lambda path, _: np.savez(path, **arrays)


def truncated_npz(path, canary):
    npz_with(token_ids=IDS)(path, canary)
    path.write_bytes(path.read_bytes()[:-30])


def pickled_array(path, canary):
    np.savez(path, token_ids=np.array([canary], object))


def one_array(path, _):
    with path.open("wb") as file:
        np.save(file, IDS)


NO_NPZ = r"cannot read {path}:.*\.npz of plain arrays.*numpy\.savez"
INPUT_FILES = {
    "missing": (lambda path, _: None, "cannot read {path}: No such file or directory"),
    "folder": (lambda path, _: path.mkdir(), "cannot read {path}: Is a directory"),
    "empty": (lambda path, _: path.write_bytes(b""), NO_NPZ),
    "text": (lambda path, _: path.write_bytes(b"token_ids: 1 2 3"), NO_NPZ),
    "one array": (one_array, NO_NPZ),
    "truncated": (truncated_npz, NO_NPZ),
    "pickle": (raw_pickle(4), NO_NPZ),
    "torch": (torch_file, NO_NPZ),
    "pickled array": (pickled_array, NO_NPZ),
    "no tokens": (npz_with(valid=np.ones((2, 3), np.bool_)), "{path} lacks token_ids.*expected token_ids, valid"),
    "names of transformers": (
        npz_with(token_ids=IDS, input_ids=IDS, attention_mask=IDS),
        "{path} holds both input_ids and token_ids; keep one of them",
    ),
    "unknown names": (
        npz_with(token_ids=IDS, labels=IDS, scores=IDS),
        "{path} holds labels, scores.*expected token_ids, valid, segment_ids, task_ids",
    ),
}


@pytest.mark.parametrize("kind", INPUT_FILES)
def test_a_file_of_inputs_that_cannot_be_read(kind, workplace, command):
    make, pattern = INPUT_FILES[kind]
    path = workplace / "inputs.npz"
    make(path, Canary(workplace / "song"))
    pattern = pattern.format(path=path)
    with unchanged(workplace):
        with refusal(InputError, pattern):
            inputs.read_batch(BERT, path)
        assert_refused(command("parity", "bert-base-tiny", "--inputs", path, "--json", "report.json"), pattern)
    assert not (workplace / "song").exists()


def test_a_process_reads_no_pickle(workplace):
    torch_file(workplace / "inputs.npz", Canary(workplace / "song"))
    with unchanged(workplace):
        result = run_process("parity", "bert-base-tiny", "--inputs", "inputs.npz")
        assert_refused(result, NO_NPZ.format(path="inputs.npz"))


@pytest.mark.parametrize(
    ("arguments", "pattern"),
    [
        ({"count": 0}, "count.*0.*expected 1 or more"),
        ({"batch_size": -1}, "batch_size.*-1.*expected 1 or more"),
        ({"seed": -1}, "seed.*-1.*expected 0 or more"),
    ],
)
def test_impossible_random_batches(arguments, pattern):
    with refusal(InputError, pattern):
        inputs.random_batches(BERT, **({"count": 1, "batch_size": 1, "seed": 0} | arguments))
