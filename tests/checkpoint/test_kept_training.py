"""A training that a checkpoint keeps: it comes back bit for bit, changes no digest, and is refused if it is damaged."""

import hashlib
import json
import re
import zipfile
from dataclasses import replace

import numpy as np
import pytest

from triglot import impls
from triglot.shared import checkpoint, inputs
from triglot.shared.checkpoint import Checkpoint, npz
from triglot.shared.errors import CheckpointError
from triglot.shared.model.recipes import recipe
from triglot.shared.training.plan import History, Moments, Plan, Training

STEPS = 3
FIRST = "training.first_moment.heads.logits.bias"
SECOND = "training.second_moment.embeddings.token.weight"
PLAN = Plan(rate=1e-3, decay=0.25, epochs_per_decay=2, samples_per_epoch=100, batch_size=7, dropout=False, seed=5)


@pytest.fixture
def trained(make_checkpoint):
    """A checkpoint with a training of random numbers, no two tensors of which are the same."""
    model, generator = make_checkpoint("translation-tiny"), np.random.default_rng(0)

    def drawn():
        return {name: generator.standard_normal(x.shape).astype(np.float32) for name, x in model.tensors.items()}

    loss, accuracy = generator.random((2, STEPS), np.float32)
    training = Training(PLAN, Moments(STEPS, drawn(), drawn()), History(loss, accuracy))
    return Checkpoint(model.config, model.tensors, {"heads.logits.bias": "fc_out.bias"}, training)


@pytest.fixture
def path(trained, tmp_path):
    checkpoint.save(trained, tmp_path / "trained.npz")
    return tmp_path / "trained.npz"


def arrays(training):
    """Every array of a training, by a name."""
    moments = {"first": training.moments.first, "second": training.moments.second}
    named = {f"{which} {name}": array for which, kept in moments.items() for name, array in kept.items()}
    return named | {"loss": training.history.loss, "accuracy": training.history.accuracy}


def assert_same(found, expected):
    assert found.plan == expected.plan
    assert found.moments.steps == expected.moments.steps
    ours, theirs = arrays(found), arrays(expected)
    assert ours.keys() == theirs.keys()
    for name, array in theirs.items():
        assert ours[name].dtype == array.dtype, name
        np.testing.assert_array_equal(ours[name], array, err_msg=name)


def members_of(path):
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    return json.loads(members.pop("manifest.json")), members


def rewrite(path, manifest, members):
    """With digests that are right, as somebody would write it on purpose; the members in order of their names."""
    if "training" in manifest:
        training = {name: value for name, value in manifest["training"].items() if name != "digest"}
        manifest["training"]["digest"] = hashlib.sha256(json.dumps(training, sort_keys=True).encode()).hexdigest()
    with path.open("w+b") as file, npz.Writer(file) as writer:
        for name in sorted(members, key=lambda member: member.removesuffix(".npy")):
            writer.write_bytes(name, members[name])
        writer.write_bytes("manifest.json", json.dumps(manifest).encode())


def array_bytes(array):
    header = f"{{'descr': '{array.dtype.str}', 'fortran_order': False, 'shape': {array.shape}, }}".encode()
    header = header.ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + array.tobytes()


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def training_in(path, verify: checkpoint.Verify = "touched"):
    training = checkpoint.load(path, verify).training
    assert training is not None
    return training


def refused(message):
    return pytest.raises(CheckpointError, match=message)


@pytest.mark.parametrize("verify", ["open", "touched", "full"])
def test_a_training_comes_back_bit_for_bit(verify, trained, path, tmp_path):
    loaded = checkpoint.load(path, verify)
    assert_same(loaded.training, trained.training)
    assert loaded.source_names == trained.source_names
    checkpoint.save(loaded, tmp_path / "again.npz")
    assert (tmp_path / "again.npz").read_bytes() == path.read_bytes()


def test_a_training_in_float64_comes_back_as_it_is(trained, tmp_path):
    moments = trained.training.moments
    wide = Moments(
        STEPS, *({n: x.astype(np.float64) / 3 for n, x in part.items()} for part in (moments.first, moments.second))
    )
    training = Training(PLAN, wide, trained.training.history)
    checkpoint.save(Checkpoint(trained.config, trained.tensors, training=training), tmp_path / "wide.npz")
    assert_same(checkpoint.load(tmp_path / "wide.npz", "full").training, training)


def test_a_training_that_has_not_begun_comes_back(trained, tmp_path):
    nothing = {name: np.zeros_like(tensor) for name, tensor in trained.tensors.items()}
    training = Training(PLAN, Moments(0, nothing, nothing), History())
    checkpoint.save(Checkpoint(trained.config, trained.tensors, training=training), tmp_path / "new.npz")
    assert_same(checkpoint.load(tmp_path / "new.npz", "full").training, training)


def test_the_digest_is_that_of_the_model_alone(trained, path, tmp_path):
    bare = Checkpoint(trained.config, trained.tensors, trained.source_names)
    assert trained.digest == bare.digest == checkpoint.load(path).digest
    checkpoint.save(bare, tmp_path / "bare.npz")
    with_training, without = members_of(path)[0], members_of(tmp_path / "bare.npz")[0]
    training = with_training.pop("training")
    assert with_training == without
    assert checkpoint.load(tmp_path / "bare.npz").training is None
    # Described in docs/checkpoint.md.
    stated = {name: value for name, value in training.items() if name != "digest"}
    assert training["digest"] == sha256(json.dumps(stated, sort_keys=True).encode())


def test_the_members_are_those_that_the_document_describes(trained, path):
    manifest, members = members_of(path)
    names = sorted(trained.tensors)
    moments = [f"training.{which}_moment.{name}" for which in ("first", "second") for name in names]
    expected = sorted([*names, *moments, "training.loss", "training.accuracy"])
    assert list(members) == [f"{name}.npy" for name in expected]
    training = manifest["training"]
    assert list(training) == ["plan", "steps", "tensors", "digest"]
    assert training["plan"] == PLAN.to_dict()
    assert training["steps"] == STEPS
    assert set(training["tensors"]) == set(expected) - set(names)
    entry = training["tensors"][FIRST]
    bias = trained.training.moments.first["heads.logits.bias"]
    assert entry == {"dtype": "float32", "shape": [41], "sha256": sha256(bias.tobytes())}


def change_plan(training, **values):
    training["plan"].update(values)


# What the manifest says of the training, changed on purpose: its digest is right.
LIES = {
    "another field": (lambda t: t.update(extra=1), "manifest.json is damaged"),
    "no plan": (lambda t: t.pop("plan"), "manifest.json is damaged"),
    "no tensors": (lambda t: t.pop("tensors"), "manifest.json is damaged"),
    "a plan that is a list": (lambda t: t.update(plan=[]), "the plan of its training is no object"),
    "an unknown field of the plan": (lambda t: change_plan(t, momentum=0.9), "expected batch_size, .*momentum;"),
    "a missing field of the plan": (lambda t: t["plan"].pop("seed"), "wrong are seed;"),
    "an impossible rate": (lambda t: change_plan(t, rate=0), "rate of the training is 0; expected a number above 0"),
    "a rate of text": (lambda t: change_plan(t, rate="1"), "rate of the training is '1'; expected a number above 0"),
    "half a batch": (lambda t: change_plan(t, batch_size=1.5), "batch_size of the training is 1.5; expected a whole"),
    "more steps than history": (lambda t: t.update(steps=4), r"training.loss has shape \(3,\), expected \(4,\)"),
    "steps of another kind": (lambda t: t.update(steps=3.0), "steps is 3.0, expected a whole number, 0 or more"),
    "steps that are true": (lambda t: t.update(steps=True), "steps is True, expected a whole number, 0 or more"),
    "steps below 0": (lambda t: t.update(steps=-1), "steps is -1, expected a whole number, 0 or more"),
    "steps without end": (lambda t: t.update(steps=10**4000), "has shape"),
    "no entry": (lambda t: t["tensors"].pop(FIRST), f"manifest.json and the tensor {FIRST} disagree"),
    "an entry without a tensor": (
        lambda t: t["tensors"].update({f"{FIRST}s": t["tensors"][FIRST]}),
        "manifest.json names tensors that are not there",
    ),
    "another shape": (
        lambda t: t["tensors"][FIRST].update(shape=[40]),
        f"manifest.json and the tensor {FIRST} disagree",
    ),
    "another dtype": (
        lambda t: t["tensors"][FIRST].update(dtype="float64"),
        f"manifest.json and the tensor {FIRST} disagree",
    ),
    "a checksum that is none": (lambda t: t["tensors"][FIRST].update(sha256="0"), "manifest.json is damaged"),
    "a field of a tensor too many": (lambda t: t["tensors"][FIRST].update(axes=[]), "manifest.json is damaged"),
    "tensors that are a list": (lambda t: t.update(tensors=[]), "manifest.json is damaged"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_manifest_that_lies_about_its_training_is_refused(lie, path):
    change, message = LIES[lie]
    manifest, members = members_of(path)
    rewrite(path, manifest, members)
    assert checkpoint.load(path, "full").training is not None, "written anew and unchanged, it is read"
    change(manifest["training"])
    rewrite(path, manifest, members)
    for verify in ("open", "touched", "full"):
        with refused(message):
            checkpoint.load(path, verify)


def test_a_training_that_was_changed_without_its_digest_is_refused(path):
    manifest, members = members_of(path)
    digest = manifest["training"]["digest"]
    manifest["training"]["steps"] = 4
    rewrite(path, manifest, members)
    manifest["training"]["digest"] = digest
    with path.open("w+b") as file, npz.Writer(file) as writer:
        for name, content in members.items():
            writer.write_bytes(name, content)
        writer.write_bytes("manifest.json", json.dumps(manifest).encode())
    with refused("manifest.json is damaged"):
        checkpoint.load(path, "open")


@pytest.mark.parametrize("training", [None, [], "x", {}])
def test_a_training_that_is_none_is_refused(training, path):
    manifest, members = members_of(path)
    manifest["training"] = training
    with path.open("w+b") as file, npz.Writer(file) as writer:
        for name, content in members.items():
            writer.write_bytes(name, content)
        writer.write_bytes("manifest.json", json.dumps(manifest).encode())
    with refused("manifest.json is damaged"):
        checkpoint.load(path, "open")


def test_members_of_a_training_that_the_manifest_does_not_know_are_refused(path):
    manifest, members = members_of(path)
    del manifest["training"]
    rewrite(path, manifest, members)
    with refused("manifest.json says nothing of its training"):
        checkpoint.load(path, "open")


@pytest.mark.parametrize("member", [FIRST, SECOND, "training.loss", "training.accuracy"])
def test_a_missing_member_is_refused(member, path):
    manifest, members = members_of(path)
    del members[f"{member}.npy"], manifest["training"]["tensors"][member]
    rewrite(path, manifest, members)
    with refused(f"missing {member};"):
        checkpoint.load(path, "open")


WRONG_ARRAYS = {
    "another shape": (FIRST, np.zeros(40, np.float32), r"has shape \(40,\), expected \(41,\)"),
    "another dtype": (FIRST, np.zeros(41, np.float16), "has dtype float16, expected float32 or float64"),
    "a longer history": ("training.loss", np.zeros(4, np.float32), r"has shape \(4,\), expected \(3,\)"),
    "a history of two dimensions": ("training.loss", np.zeros((3, 1), np.float32), r"has shape \(3, 1\), expected"),
    "an unknown member": ("training.third", np.zeros(1, np.float32), "unexpected training.third"),
    "moments of no parameter": ("training.first_moment.x", np.zeros(1, np.float32), "unexpected training.first_moment"),
}


@pytest.mark.parametrize("wrong", WRONG_ARRAYS)
def test_members_of_another_model_are_refused(wrong, path):
    name, array, message = WRONG_ARRAYS[wrong]
    manifest, members = members_of(path)
    members[f"{name}.npy"] = array_bytes(array)
    stated = {"dtype": array.dtype.name, "shape": list(array.shape), "sha256": sha256(array.tobytes())}
    manifest["training"]["tensors"][name] = stated
    rewrite(path, manifest, members)
    with refused(message):
        checkpoint.load(path, "open")


def flip(path, payload):
    """One bit of a tensor."""
    content = bytearray(path.read_bytes())
    assert content.count(payload) == 1
    content[content.index(payload) + len(payload) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(("member", "part"), [(FIRST, "first"), ("training.second_moment.heads.logits.bias", "second")])
def test_a_moment_is_compared_with_its_checksum(member, part, trained, path):
    flip(path, getattr(trained.training.moments, part)["heads.logits.bias"].tobytes())
    complaint = f"the checksum of {re.escape(member)} is wrong"
    with refused(complaint):
        checkpoint.load(path, "full")
    touched = getattr(training_in(path, "touched").moments, part)
    assert touched["heads.logits.weight"].any(), "the others are intact"
    with refused(complaint):
        touched["heads.logits.bias"]
    unread = getattr(training_in(path, "open").moments, part)
    assert unread["heads.logits.bias"].any(), "never compared"


@pytest.mark.parametrize("member", ["loss", "accuracy"])
def test_the_history_is_compared_with_its_checksum(member, trained, path):
    flip(path, getattr(trained.training.history, member).tobytes())
    for verify in ("touched", "full"):  # it is read at once
        with refused(f"the checksum of training.{member} is wrong"):
            checkpoint.load(path, verify)
    assert len(getattr(training_in(path, "open").history, member)) == STEPS


def test_opening_reads_no_moment(trained, path):
    """Looking at what a loaded checkpoint keeps, or giving it to another one, reads no bytes of the moments."""
    flip(path, trained.training.moments.first["heads.logits.bias"].tobytes())
    loaded = checkpoint.load(path)
    again = Checkpoint(loaded.config, loaded.tensors, training=loaded.training)
    assert again.training is not None
    assert again.training.moments.first.keys() == trained.tensors.keys()


OTHER = {
    "a missing moment": (lambda t: t["first"].pop("heads.logits.bias"), f"missing {FIRST};"),
    "a moment too many": (lambda t: t["second"].update(x=np.zeros(1, np.float32)), "unexpected training.second_moment"),
    "a misshapen moment": (
        lambda t: t["first"].update({"heads.logits.bias": np.zeros(40, np.float32)}),
        rf"{FIRST} has shape \(40,\), expected \(41,\);",
    ),
    "a moment of integers": (
        lambda t: t["first"].update({"heads.logits.bias": np.zeros(41, np.int64)}),
        f"{FIRST} has dtype int64, expected float32 or float64;",
    ),
    "a moment that is a list": (
        lambda t: t["first"].update({"heads.logits.bias": [0.0] * 41}),
        f"{FIRST} is a list, expected a NumPy array;",
    ),
    "a history of other steps": (
        lambda t: t.update(steps=2),
        r"training.accuracy has shape \(3,\), expected \(2,\); training.loss",
    ),
    "steps that are no number": (lambda t: t.update(steps=None), "steps is None, expected a whole number, 0 or more"),
}


@pytest.mark.parametrize("wrong", OTHER)
def test_a_training_of_another_model_is_refused_in_memory(wrong, trained):
    change, message = OTHER[wrong]
    kept = trained.training
    parts = {"first": dict(kept.moments.first), "second": dict(kept.moments.second), "steps": STEPS}
    change(parts)
    training = Training(PLAN, Moments(parts["steps"], parts["first"], parts["second"]), kept.history)
    with refused(f"^the training does not match the configuration: {message}"):
        Checkpoint(trained.config, trained.tensors, training=training)


def test_a_training_from_the_file_of_another_model_is_refused(path, make_checkpoint):
    other = make_checkpoint("annotated-tiny")
    with refused("^the training does not match the configuration: missing training.first_moment.decoder.final"):
        Checkpoint(other.config, other.tensors, training=checkpoint.load(path).training)


def test_what_a_framework_remembers_is_what_the_file_keeps(framework, make_checkpoint, tmp_path):
    model = make_checkpoint("translation-tiny")
    built = impls.build(framework, model)
    built.begin_training(PLAN)
    outcome = built.training_step(inputs.teacher_forcing(model.config, [[3, 4, 5]], [[0, 9, 10, 1]]))
    history = History(np.array([outcome.loss], np.float32), np.array([outcome.right / outcome.counted], np.float32))
    training = Training(PLAN, built.moments(), history)
    checkpoint.save(Checkpoint(model.config, built.weights(), training=training), tmp_path / "trained.npz")
    loaded = checkpoint.load(tmp_path / "trained.npz", "full")
    assert_same(loaded.training, training)
    assert any(moment.any() for moment in training_in(tmp_path / "trained.npz").moments.first.values())


@pytest.mark.parametrize("field", ["layers", "decoder_layers"])
def test_a_configuration_of_a_billion_layers_is_refused_at_once(field, path):
    """Before a name is made up for each of its tensors: those of a billion would take days."""
    manifest, members = members_of(path)
    config = replace(recipe("translation-tiny"), **{field: 10**9})
    manifest["config"] = config.to_dict()
    tensors = {n: {k: e[k] for k in ("dtype", "shape", "sha256")} for n, e in manifest["tensors"].items()}
    content = {"config": config.identity(), "tensors": tensors}
    manifest["digest"] = sha256(json.dumps(content, sort_keys=True).encode())
    rewrite(path, manifest, members)
    with refused(r"its \d+ tensors cannot be 100000000\d layers"):
        checkpoint.load(path, "open")
    with refused(r"\d+ tensors cannot be the 100000000\d layers of the configuration"):
        Checkpoint(config, {})
