"""The neutral checkpoint: what is saved comes back, anyone can read it, and damage does not go unnoticed."""

import contextlib
import hashlib
import json
import re
import subprocess
import sys
import zipfile
from dataclasses import replace

import numpy as np
import pytest

from triglot.shared import checkpoint, npz
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.config import ModelConfig
from triglot.shared.errors import CheckpointError
from triglot.shared.recipes import recipe, recipes

TINY = [name for name in recipes() if name.endswith("-tiny")]
DAMAGED = "encoder.layers.1.feed_forward.inner.weight"


@pytest.fixture
def saved(make_checkpoint, tmp_path):
    """A checkpoint and the file that it was saved to."""
    original = make_checkpoint("bert-base-tiny")
    path = tmp_path / "model.npz"
    checkpoint.save(original, path)
    return original, path


@pytest.fixture
def damaged(saved):
    """The file with one bit flipped in the payload of one tensor."""
    original, path = saved
    content = bytearray(path.read_bytes())
    payload = original.tensors[DAMAGED].tobytes()
    assert content.count(payload) == 1
    content[content.index(payload) + 101] ^= 1
    path.write_bytes(content)
    return path


def rewrite(path, edit=None, change=None):
    """Write the members of ``path`` anew: ``edit`` takes the manifest and returns its bytes, None leaves it out.

    ``change`` holds the content of other members, None leaves one out.
    """
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    manifest = members.pop("manifest.json")
    members.update(change or {})
    members["manifest.json"] = manifest if edit is None else edit(manifest)
    with path.open("w+b") as file:
        writer = npz.Writer(file)
        for name, content in members.items():
            if content is not None:
                writer.write_bytes(name, content)
        writer.close()


def assert_same(found, expected):
    assert found.config == expected.config
    assert found.tensors.keys() == expected.tensors.keys()
    for name, tensor in expected.tensors.items():
        assert found.tensors[name].dtype == tensor.dtype
        np.testing.assert_array_equal(found.tensors[name], tensor, err_msg=name)
    assert found.source_names == expected.source_names
    assert found.digest == expected.digest


def assert_load_refused(path, message):
    with pytest.raises(CheckpointError, match=f"^{re.escape(message)}"):
        checkpoint.load(path)


@pytest.mark.parametrize("verify", ["open", "touched", "full"])
@pytest.mark.parametrize("name", TINY)
def test_what_was_saved_comes_back(name, verify, make_checkpoint, tmp_path):
    original = make_checkpoint(name)
    checkpoint.save(original, tmp_path / "model.npz")
    assert_same(checkpoint.load(tmp_path / "model.npz", verify), original)


def test_float64_comes_back_as_float64(make_checkpoint, tmp_path):
    single = make_checkpoint("dygraph-tiny")
    double = {name: tensor.astype(np.float64) / 3 for name, tensor in single.tensors.items()}
    original = Checkpoint(single.config, double)
    checkpoint.save(original, str(tmp_path / "model.npz"))
    assert_same(checkpoint.load(str(tmp_path / "model.npz")), original)


def test_the_names_before_porting_come_back(make_checkpoint, tmp_path):
    plain = make_checkpoint("bert-base-tiny")
    names = {"heads.pooler.weight": "pooler.dense.weight", "heads.pooler.bias": "poolér.dense.bias"}
    original = Checkpoint(plain.config, plain.tensors, names)
    checkpoint.save(original, tmp_path / "model.npz")
    loaded = checkpoint.load(tmp_path / "model.npz")
    assert loaded.source_names == names
    assert_same(loaded, original)
    assert plain.source_names == {}


def test_numpy_alone_reads_the_tensors(saved):
    original, path = saved
    with np.load(path) as archive:
        assert archive.files == [*sorted(original.tensors), "manifest.json"]
        for name, tensor in original.tensors.items():
            assert archive[name].dtype == tensor.dtype
            np.testing.assert_array_equal(archive[name], tensor, err_msg=name)
        manifest = json.loads(archive["manifest.json"])
    assert list(manifest) == ["schema", "digest", "config", "tensors"]
    assert manifest["schema"] == "triglot.checkpoint/1"
    assert manifest["digest"] == original.digest
    assert ModelConfig.from_dict(manifest["config"]) == original.config


def test_the_manifest_describes_every_tensor(saved):
    original, path = saved
    with zipfile.ZipFile(path) as archive:
        entries = json.loads(archive.read("manifest.json"))["tensors"]
    assert entries.keys() == original.tensors.keys()
    for name, tensor in original.tensors.items():
        assert entries[name]["dtype"] == "float32"
        assert entries[name]["shape"] == list(tensor.shape)
        assert entries[name]["sha256"] == hashlib.sha256(tensor.tobytes()).hexdigest()
        assert len(entries[name]["axes"]) == tensor.ndim
        assert "source" not in entries[name]
    assert entries["embeddings.token.weight"]["axes"] == ["vocabulary", "hidden"]


def test_the_digest_is_that_of_configuration_and_tensors_in_the_manifest(saved):
    original, path = saved
    with zipfile.ZipFile(path) as archive:
        manifest = json.loads(archive.read("manifest.json"))
    tensors = {
        name: {field: entry[field] for field in ("dtype", "shape", "sha256")}
        for name, entry in manifest["tensors"].items()
    }
    content = json.dumps({"config": manifest["config"], "tensors": tensors}, sort_keys=True)
    assert hashlib.sha256(content.encode()).hexdigest() == original.digest


def test_the_digest_does_not_depend_on_order_or_layout(make_checkpoint):
    original = make_checkpoint("bert-base-tiny")
    names = reversed(original.tensors)
    tensors = {name: np.asfortranarray(original.tensors[name]) for name in names}
    assert list(tensors) != list(original.tensors)
    assert Checkpoint(original.config, tensors, {"heads.pooler.bias": "b"}).digest == original.digest


def test_the_digest_depends_on_every_bit(make_checkpoint):
    original = make_checkpoint("bert-base-tiny")
    digests = {original.digest}
    for name in original.tensors:
        tensor = original.tensors[name].copy()
        tensor.view(np.uint32).flat[-1] ^= 1
        digests.add(Checkpoint(original.config, {**original.tensors, name: tensor}).digest)
    assert len(digests) == 1 + len(original.tensors)


def test_the_digest_depends_on_configuration_and_dtype(make_checkpoint):
    original = make_checkpoint("bert-base-tiny")
    config, tensors = original.config, original.tensors
    digests = {
        original.digest,
        Checkpoint(replace(config, norm_eps=1e-5), tensors).digest,
        Checkpoint(replace(config, activation="relu"), tensors).digest,
        Checkpoint(replace(config, pad_id=None), tensors).digest,
        Checkpoint(config, {name: tensor.astype(np.float64) for name, tensor in tensors.items()}).digest,
    }
    assert len(digests) == 5


def test_the_digest_distinguishes_two_tensors_that_changed_places(make_checkpoint):
    original = make_checkpoint("bert-base-tiny")
    query, key = (f"encoder.layers.0.attention.{name}.weight" for name in ("query", "key"))
    swapped = {**original.tensors, query: original.tensors[key], key: original.tensors[query]}
    assert Checkpoint(original.config, swapped).digest != original.digest


def test_the_same_checkpoint_gives_the_same_bytes(saved, tmp_path):
    original, path = saved
    content = path.read_bytes()
    reordered = Checkpoint(original.config, {name: original.tensors[name] for name in reversed(original.tensors)})
    for again in (original, reordered, checkpoint.load(path)):
        checkpoint.save(again, tmp_path / "again.npz")
        assert (tmp_path / "again.npz").read_bytes() == content


def test_a_file_can_be_written_over_the_one_it_was_loaded_from(saved):
    original, path = saved
    loaded = checkpoint.load(path)
    checkpoint.save(loaded, path)
    assert_same(loaded, original)
    assert_same(checkpoint.load(path), original)


def test_saving_changes_nothing_in_what_it_saves(make_checkpoint, tmp_path):
    original, untouched = make_checkpoint("bert-base-tiny"), make_checkpoint("bert-base-tiny")
    checkpoint.save(original, tmp_path / "model.npz")
    assert_same(original, untouched)
    assert list(original.tensors) == list(untouched.tensors)


def test_writing_into_a_loaded_tensor_leaves_the_file_as_it_is(saved):
    original, path = saved
    checkpoint.load(path).tensors["heads.pooler.bias"][:] = 7
    assert_same(checkpoint.load(path, "full"), original)


def test_tensors_that_do_not_fit_the_configuration_are_no_checkpoint(make_checkpoint):
    original = make_checkpoint("bert-base-tiny")
    with pytest.raises(CheckpointError, match=r"missing embeddings\.task\.weight \(16, 24\)"):
        Checkpoint(recipe("ernie-base-tiny"), original.tensors)


def test_open_does_not_look_at_the_bytes(damaged):
    loaded = checkpoint.load(damaged, "open")
    assert all(np.isfinite(tensor).all() for tensor in loaded.tensors.values())


def test_touched_notices_damage_when_the_tensor_is_read_and_not_before(damaged):
    loaded = checkpoint.load(damaged)
    others = [name for name in loaded.tensors if name != DAMAGED]
    assert len(others) == len(loaded.tensors) - 1
    for name in others:
        assert loaded.tensors[name].size
    message = f"^cannot read {re.escape(str(damaged))}: the checksum of {DAMAGED} is wrong, the file is damaged; "
    for _ in range(2):  # asking again is no way around it
        with pytest.raises(CheckpointError, match=message):
            loaded.tensors[DAMAGED]
    for name in others:
        assert loaded.tensors[name].size


def test_full_notices_damage_at_once(damaged):
    message = f"^cannot read {re.escape(str(damaged))}: the checksum of {DAMAGED} is wrong, the file is damaged; "
    with pytest.raises(CheckpointError, match=message):
        checkpoint.load(damaged, "full")


def test_a_wrong_checksum_in_the_manifest_is_noticed(saved):
    _, path = saved
    rewrite(path, lambda content: edit_json(content, lambda m: m["tensors"]["heads.pooler.bias"].update(sha256="0")))
    with pytest.raises(CheckpointError, match=r"the checksum of heads\.pooler\.bias is wrong"):
        checkpoint.load(path, "full")


def edit_json(content, change):
    """Change a manifest, and make its digest fit again where that is possible: deeper checks have their turn then."""
    manifest = json.loads(content)
    change(manifest)
    with contextlib.suppress(KeyError, TypeError, AttributeError):
        keys = ("dtype", "shape", "sha256")
        tensors = {name: {key: entry[key] for key in keys} for name, entry in manifest["tensors"].items()}
        signed = json.dumps({"config": manifest["config"], "tensors": tensors}, sort_keys=True)
        manifest["digest"] = hashlib.sha256(signed.encode()).hexdigest()
    return json.dumps(manifest).encode()


@pytest.mark.parametrize(
    "change",
    [
        lambda manifest: manifest["config"].update(norm_eps=1e-5),
        lambda manifest: manifest["config"].update(activation="gelu_tanh"),
        lambda manifest: manifest["tensors"]["heads.pooler.bias"].update(sha256="0" * 64),
        lambda manifest: manifest.update(digest="0" * 64),
    ],
    ids=["epsilon", "activation", "checksum", "digest"],
)
@pytest.mark.parametrize("level", ["open", "touched", "full"])
def test_a_manifest_that_was_changed_is_refused_at_every_level(change, level, saved):
    _, path = saved

    def edit(content):
        manifest = json.loads(content)
        change(manifest)
        return json.dumps(manifest).encode()

    rewrite(path, edit)
    with pytest.raises(
        CheckpointError, match=r"manifest\.json was changed, its digest is wrong; give an undamaged file"
    ):
        checkpoint.load(path, level)


def test_rewriting_alone_is_no_damage(saved):
    """The guard of the tests below: members that were written anew are still a checkpoint."""
    original, path = saved
    rewrite(path, lambda content: edit_json(content, lambda manifest: None))
    assert_same(checkpoint.load(path, "full"), original)


def test_a_newer_schema_is_refused(saved):
    _, path = saved
    rewrite(path, lambda content: edit_json(content, lambda m: m.update(schema="triglot.checkpoint/2")))
    assert_load_refused(
        path,
        f"cannot read {path}: its schema is 'triglot.checkpoint/2', expected 'triglot.checkpoint/1'; update Triglot",
    )


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe\xfd",
        b"null",
        b"[]",
        b'"schema"',
        b"{}",
        b'{"schema": "triglot.checkpoint/1"}',
    ],
)
def test_a_damaged_manifest_is_refused(content, saved):
    _, path = saved
    rewrite(path, lambda _: content)
    with pytest.raises(CheckpointError, match=f"^cannot read {re.escape(str(path))}: manifest.json is damaged; "):
        checkpoint.load(path)


@pytest.mark.parametrize("field", ["schema", "config", "tensors"])
def test_a_manifest_that_lacks_a_field_is_refused(field, saved):
    _, path = saved
    rewrite(path, lambda content: edit_json(content, lambda manifest: manifest.pop(field)))
    assert_load_refused(
        path, f"cannot read {path}: manifest.json is damaged; give an undamaged file that Triglot wrote"
    )


@pytest.mark.parametrize("field", ["sha256", "shape"])
def test_an_entry_that_lacks_a_field_is_refused(field, saved):
    _, path = saved
    rewrite(path, lambda content: edit_json(content, lambda m: m["tensors"]["heads.pooler.bias"].pop(field)))
    assert_load_refused(
        path, f"cannot read {path}: manifest.json is damaged; give an undamaged file that Triglot wrote"
    )


@pytest.mark.parametrize("entries", [None, [], "abc", {"heads.pooler.bias": None}, {"heads.pooler.bias": []}])
def test_entries_of_another_form_are_refused(entries, saved):
    _, path = saved
    rewrite(path, lambda content: edit_json(content, lambda manifest: manifest.update(tensors=entries)))
    assert_load_refused(
        path, f"cannot read {path}: manifest.json is damaged; give an undamaged file that Triglot wrote"
    )


def test_an_archive_without_a_manifest_is_refused(saved):
    original, path = saved
    rewrite(path, lambda _: None)
    assert_load_refused(
        path, f"cannot read {path}: member manifest.json is missing; give an undamaged file that Triglot wrote"
    )
    np.savez(path, **original.tensors)
    assert_load_refused(
        path, f"cannot read {path}: member manifest.json is missing; give an undamaged file that Triglot wrote"
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda entries: entries.pop("heads.pooler.bias"),
        lambda entries: entries.update(other={"sha256": "", "shape": [1], "dtype": "float32"}),
        lambda entries: entries["heads.pooler.bias"].update(shape=[23]),
        lambda entries: entries["heads.pooler.bias"].update(shape=[24, 1]),
        lambda entries: entries["heads.pooler.bias"].update(dtype="float64"),
        lambda entries: entries["heads.pooler.bias"].update(axes=["head"]),
    ],
    ids=["an entry too few", "an entry too many", "another size", "another rank", "another dtype", "other axes"],
)
def test_a_manifest_that_disagrees_with_the_tensors_is_refused(change, saved):
    _, path = saved
    rewrite(path, lambda content: edit_json(content, lambda manifest: change(manifest["tensors"])))
    with pytest.raises(
        CheckpointError, match=r"manifest\.json (and the tensor .* disagree|names tensors that are not)"
    ):
        checkpoint.load(path)


def test_tensors_outside_the_schema_are_refused(saved):
    _, path = saved
    with zipfile.ZipFile(path) as archive:
        bias = archive.read("heads.pooler.bias.npy")
    rewrite(path, change={"heads.pooler.weight.npy": bias, "heads.other.bias.npy": bias, "heads.pooler.bias.npy": None})
    with pytest.raises(CheckpointError) as error:
        checkpoint.load(path)
    for problem in (
        "missing heads.pooler.bias (24,)",
        "unexpected heads.other.bias",
        "heads.pooler.weight has shape (24,), expected (24, 24)",
    ):
        assert problem in str(error.value)


def test_a_configuration_of_other_tensors_is_refused(saved):
    _, path = saved
    rewrite(path, lambda content: edit_json(content, lambda manifest: manifest["config"].update(layers=1)))
    with pytest.raises(CheckpointError, match=r"unexpected encoder\.layers\.1\.attention\.key\.bias"):
        checkpoint.load(path)


def test_a_missing_file_is_refused(tmp_path):
    path = tmp_path / "model.npz"
    assert_load_refused(
        path, f"cannot read {path}: No such file or directory; give an undamaged file that Triglot wrote"
    )


def test_a_process_that_dies_while_it_saves_leaves_the_old_file(saved):
    """No chance to clean up, as when the power fails: what was there before is still all there."""
    original, path = saved
    script = f"""
import os
from triglot.shared.checkpoint import Checkpoint, save
from triglot.shared.initializers import initialize
from triglot.shared.recipes import recipe

class Dying(dict):
    def __getitem__(self, name):
        return super().__getitem__(name) if name < "encoder.layers.1" else os._exit(3)

config = recipe("bert-base-tiny")
save(Checkpoint(config, Dying(initialize(config, 5))), {str(path)!r})
"""
    finished = subprocess.run([sys.executable, "-c", script], check=False, timeout=60)
    assert finished.returncode == 3
    assert_same(checkpoint.load(path, "full"), original)
    partial = [file for file in path.parent.iterdir() if file != path]
    assert [file.suffix for file in partial] == [".part"], "it was not in the middle of writing"
