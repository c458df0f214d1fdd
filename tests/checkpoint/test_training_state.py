"""The training state in a checkpoint: loaded bit for bit, not part of the digest, and refused if it is damaged."""

import re

import numpy as np
import pytest
from checkpoint_files import LEVELS, edit_manifest, flip_a_bit, read_members, seal, sha256, write_members

from triglot import impls
from triglot.shared import checkpoint
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.errors import CheckpointError
from triglot.shared.inputs import teacher_forcing
from triglot.shared.training.plan import History, Moments, Plan, Training

STEPS = 3
BIAS = "heads.logits.bias"
FIRST, SECOND = f"training.first_moment.{BIAS}", f"training.second_moment.{BIAS}"
PLAN = Plan(rate=1e-3, decay=0.25, epochs_per_decay=2, samples_per_epoch=100, batch_size=7, dropout=False, seed=5)
DAMAGED = r"manifest\.json is damaged"


@pytest.fixture
def trained(make_checkpoint):
    """A checkpoint with random training state, all of its tensors different."""
    model, generator = make_checkpoint("translation-tiny"), np.random.default_rng(0)

    def draw():
        return {name: generator.standard_normal(x.shape).astype(np.float32) for name, x in model.tensors.items()}

    loss, accuracy = generator.random((2, STEPS), np.float32)
    training = Training(PLAN, Moments(STEPS, draw(), draw()), History(loss, accuracy))
    return Checkpoint(model.config, model.tensors, {BIAS: "fc_out.bias"}, training)


@pytest.fixture
def path(trained, tmp_path):
    checkpoint.save(trained, tmp_path / "trained.npz")
    return tmp_path / "trained.npz"


def arrays(training):
    moments = {"first": training.moments.first, "second": training.moments.second}
    named = {f"{moment} {name}": array for moment, tensors in moments.items() for name, array in tensors.items()}
    return named | {"loss": training.history.loss, "accuracy": training.history.accuracy}


def assert_same(training, expected):
    assert training.plan == expected.plan
    assert training.moments.steps == expected.moments.steps
    assert arrays(training).keys() == arrays(expected).keys()
    for name, array in arrays(expected).items():
        assert arrays(training)[name].dtype == array.dtype, name
        np.testing.assert_array_equal(arrays(training)[name], array, err_msg=name)


def load_training(path, verify: checkpoint.Verify = "touched"):
    training = checkpoint.load(path, verify).training
    assert training is not None
    return training


def refused(problem):
    return pytest.raises(CheckpointError, match=problem)


def assert_refused(path, problem):
    for verify in LEVELS:
        with refused(problem):
            checkpoint.load(path, verify)


def in_float64(trained):
    moments = trained.training.moments
    wide = ({name: x.astype(np.float64) / 3 for name, x in part.items()} for part in (moments.first, moments.second))
    return Training(PLAN, Moments(STEPS, *wide), trained.training.history)


def before_the_first_step(trained):
    zeros = {name: np.zeros_like(tensor) for name, tensor in trained.tensors.items()}
    return Training(PLAN, Moments(0, zeros, zeros), History())


@pytest.mark.parametrize("verify", LEVELS)
@pytest.mark.parametrize("make", [lambda trained: trained.training, in_float64, before_the_first_step])
def test_load_returns_the_training_that_was_saved(make, verify, trained, tmp_path):
    original = Checkpoint(trained.config, trained.tensors, training=make(trained))
    checkpoint.save(original, tmp_path / "first.npz")
    loaded = checkpoint.load(tmp_path / "first.npz", verify)
    assert_same(loaded.training, original.training)
    checkpoint.save(loaded, tmp_path / "second.npz")
    assert (tmp_path / "second.npz").read_bytes() == (tmp_path / "first.npz").read_bytes()


def test_the_digest_covers_only_the_model(trained, path, tmp_path):
    without = Checkpoint(trained.config, trained.tensors, trained.source_names)
    assert trained.digest == without.digest == checkpoint.load(path).digest
    checkpoint.save(without, tmp_path / "without.npz")
    manifest, manifest_without = read_members(path)[0], read_members(tmp_path / "without.npz")[0]
    del manifest["training"]
    assert manifest == manifest_without
    assert checkpoint.load(tmp_path / "without.npz").training is None


def test_members_and_manifest_are_those_of_the_document(trained, path):
    manifest, members = read_members(path)
    names = sorted(trained.tensors)
    moments = [f"training.{moment}_moment.{name}" for moment in ("first", "second") for name in names]
    expected = sorted([*names, *moments, "training.loss", "training.accuracy"])
    assert list(members) == [f"{name}.npy" for name in expected]
    training = manifest["training"]
    assert list(training) == ["plan", "steps", "tensors", "digest"]
    assert training["plan"] == PLAN.to_dict()
    assert training["steps"] == STEPS
    assert set(training["tensors"]) == set(expected) - set(names)
    bias = trained.training.moments.first[BIAS]
    assert training["tensors"][FIRST] == {"dtype": "float32", "shape": [41], "sha256": sha256(bias.tobytes())}
    digest = training["digest"]
    seal(manifest)
    assert manifest["training"]["digest"] == digest


def plan(**values):
    return lambda training: training["plan"].update(values)


# Each change of the manifest's training with the right digest, and what the refusal says.
EDITS = {
    "another field": (lambda t: t.update(extra=1), DAMAGED),
    "no plan": (lambda t: t.pop("plan"), DAMAGED),
    "no tensors": (lambda t: t.pop("tensors"), DAMAGED),
    "tensors that are a list": (lambda t: t.update(tensors=[]), DAMAGED),
    "a plan that is a list": (lambda t: t.update(plan=[]), DAMAGED),
    "an unknown field of the plan": (plan(momentum=0.9), "momentum"),
    "a missing field of the plan": (lambda t: t["plan"].pop("seed"), "seed"),
    "an impossible rate": (plan(rate=0), "rate.* is 0.*above 0"),
    "a rate of text": (plan(rate="1"), "rate.* is '1'.*above 0"),
    "half a batch": (plan(batch_size=1.5), "batch_size.* is 1.5.*whole"),
    "more steps than history": (lambda t: t.update(steps=4), r"training.loss has shape \(3,\), expected \(4,\)"),
    "steps of another kind": (lambda t: t.update(steps=3.0), "steps is 3.0, expected a whole number, 0 or more"),
    "steps that are true": (lambda t: t.update(steps=True), "steps is True, expected a whole number, 0 or more"),
    "steps below 0": (lambda t: t.update(steps=-1), "steps is -1, expected a whole number, 0 or more"),
    "steps without end": (lambda t: t.update(steps=10**4000), "has shape"),
    "no entry": (lambda t: t["tensors"].pop(FIRST), f"tensor {FIRST} disagree"),
    "an additional entry": (lambda t: t["tensors"].update({f"{FIRST}s": t["tensors"][FIRST]}), "does not have"),
    "another shape": (lambda t: t["tensors"][FIRST].update(shape=[40]), f"tensor {FIRST} disagree"),
    "another dtype": (lambda t: t["tensors"][FIRST].update(dtype="float64"), f"tensor {FIRST} disagree"),
    "a short sha256": (lambda t: t["tensors"][FIRST].update(sha256="0"), DAMAGED),
    "axes": (lambda t: t["tensors"][FIRST].update(axes=[]), DAMAGED),
}


@pytest.mark.parametrize("edit", EDITS)
def test_a_changed_training_in_the_manifest_is_refused(edit, path):
    change, problem = EDITS[edit]
    edit_manifest(path, lambda manifest: None)
    assert load_training(path, "full"), "rewriting alone is accepted"
    edit_manifest(path, lambda manifest: change(manifest["training"]))
    assert_refused(path, problem)


@pytest.mark.parametrize("training", [None, [], "x", {}])
def test_a_training_that_is_not_an_object_is_refused(training, path):
    edit_manifest(path, lambda manifest: manifest.update(training=training))
    assert_refused(path, DAMAGED)


def test_a_wrong_digest_of_the_training_is_refused(path):
    manifest, members = read_members(path)
    manifest["training"]["steps"] = 4
    write_members(path, manifest, members)
    assert_refused(path, DAMAGED)


def test_members_that_the_manifest_does_not_mention_are_refused(path):
    edit_manifest(path, lambda manifest: manifest.pop("training"))
    assert_refused(path, r"manifest\.json does not mention its training")


@pytest.mark.parametrize("member", [FIRST, SECOND, "training.loss", "training.accuracy"])
def test_a_missing_member_is_refused(member, path):
    manifest, members = read_members(path)
    del members[f"{member}.npy"], manifest["training"]["tensors"][member]
    seal(manifest)
    write_members(path, manifest, members)
    assert_refused(path, f"missing {member};")


WRONG_MEMBERS = {
    "another shape": (FIRST, np.zeros(40, np.float32), r"has shape \(40,\), expected \(41,\)"),
    "another dtype": (FIRST, np.zeros(41, np.float16), "has dtype float16, expected float32 or float64"),
    "a longer history": ("training.loss", np.zeros(4, np.float32), r"has shape \(4,\), expected \(3,\)"),
    "a history of two dimensions": ("training.loss", np.zeros((3, 1), np.float32), r"has shape \(3, 1\), expected"),
    "an unknown member": ("training.third", np.zeros(1, np.float32), "unexpected training.third"),
    "moments of no parameter": ("training.first_moment.x", np.zeros(1, np.float32), "unexpected training.first_moment"),
}


@pytest.mark.parametrize("wrong", WRONG_MEMBERS)
def test_a_wrong_member_is_refused(wrong, path):
    name, array, problem = WRONG_MEMBERS[wrong]
    manifest, members = read_members(path)
    header = f"{{'descr': '{array.dtype.str}', 'fortran_order': False, 'shape': {array.shape}, }}".encode()
    header = header.ljust(117) + b"\n"
    members[f"{name}.npy"] = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + array.tobytes()
    facts = {"dtype": array.dtype.name, "shape": list(array.shape), "sha256": sha256(array.tobytes())}
    manifest["training"]["tensors"][name] = facts
    seal(manifest)
    write_members(path, manifest, dict(sorted(members.items(), key=lambda item: item[0].removesuffix(".npy"))))
    assert_refused(path, problem)


@pytest.mark.parametrize(("member", "part"), [(FIRST, "first"), (SECOND, "second")])
def test_moments_are_verified_when_they_are_read(member, part, trained, path):
    flip_a_bit(path, getattr(trained.training.moments, part)[BIAS])
    problem = f"the checksum of {re.escape(member)} is wrong"
    with refused(problem):
        checkpoint.load(path, "full")
    loaded = checkpoint.load(path, "touched")
    again = Checkpoint(loaded.config, loaded.tensors, training=loaded.training)  # reads no moments
    assert again.training is not None
    moments = getattr(again.training.moments, part)
    assert moments.keys() == trained.tensors.keys()
    assert moments["heads.logits.weight"].any(), "the others are intact"
    with refused(problem):
        moments[BIAS]
    assert getattr(load_training(path, "open").moments, part)[BIAS].any(), "never verified"


@pytest.mark.parametrize("member", ["loss", "accuracy"])
def test_the_history_is_verified_when_the_file_is_opened(member, trained, path):
    flip_a_bit(path, getattr(trained.training.history, member))
    for verify in ("touched", "full"):
        with refused(f"the checksum of training.{member} is wrong"):
            checkpoint.load(path, verify)
    assert len(getattr(load_training(path, "open").history, member)) == STEPS


# Changes of the training run in memory, and what the refusal says.
OTHER = {
    "a missing moment": (lambda t: t["first"].pop(BIAS), f"missing {FIRST}"),
    "an additional moment": (lambda t: t["second"].update(x=np.zeros(1)), "unexpected training.second_moment"),
    "another shape": (
        lambda t: t["first"].update({BIAS: np.zeros(40, np.float32)}),
        rf"{FIRST} has shape \(40,\), expected \(41,\)",
    ),
    "integers": (
        lambda t: t["first"].update({BIAS: np.zeros(41, np.int64)}),
        f"{FIRST} has dtype int64, expected float32 or float64",
    ),
    "a list": (lambda t: t["first"].update({BIAS: [0.0] * 41}), f"{FIRST} is a list, expected a NumPy array"),
    "other steps": (lambda t: t.update(steps=2), r"training.accuracy has shape \(3,\), expected \(2,\).*training.loss"),
    "no steps": (lambda t: t.update(steps=None), "steps is None, expected a whole number, 0 or more"),
}


@pytest.mark.parametrize("wrong", OTHER)
def test_a_training_that_does_not_match_the_model_is_refused(wrong, trained):
    change, problem = OTHER[wrong]
    original = trained.training
    parts = {"first": dict(original.moments.first), "second": dict(original.moments.second), "steps": STEPS}
    change(parts)
    training = Training(PLAN, Moments(parts["steps"], parts["first"], parts["second"]), original.history)
    with refused(f"the training run does not match the configuration: {problem}.*saved with this model"):
        Checkpoint(trained.config, trained.tensors, training=training)


def test_the_training_of_another_model_is_refused(path, make_checkpoint):
    other = make_checkpoint("annotated-tiny")
    with refused("the training run does not match the configuration: missing training.first_moment.decoder.final"):
        Checkpoint(other.config, other.tensors, training=checkpoint.load(path).training)


def test_the_moments_of_a_framework_are_saved_and_loaded(framework, make_checkpoint, tmp_path):
    model = make_checkpoint("translation-tiny")
    built = impls.build(framework, model)
    built.begin_training(PLAN)
    outcome = built.training_step(teacher_forcing(model.config, [[3, 4, 5]], [[0, 9, 10, 1]]))
    history = History(np.array([outcome.loss], np.float32), np.array([outcome.right / outcome.counted], np.float32))
    training = Training(PLAN, built.moments(), history)
    checkpoint.save(Checkpoint(model.config, built.weights(), training=training), tmp_path / "trained.npz")
    assert_same(load_training(tmp_path / "trained.npz", "full"), training)
    assert any(moment.any() for moment in load_training(tmp_path / "trained.npz").moments.first.values())
