"""The neutral checkpoint: what is saved comes back, anyone can read it, and damage does not go unnoticed."""

import contextlib
import hashlib
import json
import mmap
import pickle
import re
import zipfile
from dataclasses import MISSING, fields, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triglot import impls
from triglot.bench.studies import checkpoints
from triglot.shared import checkpoint
from triglot.shared.checkpoint import Checkpoint, npz
from triglot.shared.dtypes import BFLOAT16, FLOATS
from triglot.shared.errors import CheckpointError, ConfigError
from triglot.shared.model import schema
from triglot.shared.model.config import ModelConfig
from triglot.shared.model.initializers import initialize
from triglot.shared.model.recipes import recipe, recipes

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
    defaults = {field.name: field.default for field in fields(ModelConfig)}
    config = {name: value for name, value in manifest["config"].items() if value != defaults[name]}
    content = json.dumps({"config": config, "tensors": tensors}, sort_keys=True)
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
    rewrite(
        path, lambda content: edit_json(content, lambda m: m["tensors"]["heads.pooler.bias"].update(sha256="0" * 64))
    )
    with pytest.raises(CheckpointError, match=r"the checksum of heads\.pooler\.bias is wrong"):
        checkpoint.load(path, "full")


def edit_json(content, change):
    """Change a manifest, and make its digest fit again where that is possible: deeper checks have their turn then."""
    manifest = json.loads(content)
    change(manifest)
    seal(manifest)
    return json.dumps(manifest).encode()


def seal(manifest):
    with contextlib.suppress(KeyError, TypeError, AttributeError, ConfigError):
        keys = ("dtype", "shape", "sha256")
        stored = {name: entry for name, entry in manifest["tensors"].items() if "alias" not in entry}
        tensors = {name: {key: entry[key] for key in keys} for name, entry in stored.items()}
        config = ModelConfig.from_dict(manifest["config"]).identity()
        signed = json.dumps({"config": config, "tensors": tensors}, sort_keys=True)
        manifest["digest"] = hashlib.sha256(signed.encode()).hexdigest()


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
        lambda entries: entries.update(other={"sha256": "0" * 64, "shape": [1], "dtype": "float32", "axes": []}),
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
    assert_load_refused(path, f"there is no {path}; give a checkpoint that Triglot wrote")


def tied(dtype="float32"):
    """A checkpoint with a tied head, in another number format; its values are exact in all of them."""
    config = replace(recipe("bert-base-tiny"), heads_on_top=("pooler", "masked_lm"), tied_embeddings=True)
    tensors = {name: tensor.astype(BFLOAT16).astype(FLOATS[dtype]) for name, tensor in initialize(config, 3).items()}
    return Checkpoint(config, tensors)


@pytest.fixture
def tied_file(tmp_path):
    """A checkpoint with an alias in its manifest and bfloat16 tensors, and its file."""
    original = tied("bfloat16")
    checkpoint.save(original, tmp_path / "tied.npz")
    return original, tmp_path / "tied.npz"


@pytest.mark.parametrize("verify", ["open", "touched", "full"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_every_number_format_comes_back(dtype, verify, tmp_path):
    original = tied(dtype)
    checkpoint.save(original, tmp_path / "model.npz")
    loaded = checkpoint.load(tmp_path / "model.npz", verify)
    assert_same(loaded, original)
    assert {tensor.dtype for tensor in loaded.tensors.values()} == {FLOATS[dtype]}
    checkpoint.save(loaded, tmp_path / "again.npz")
    assert (tmp_path / "again.npz").read_bytes() == (tmp_path / "model.npz").read_bytes()


def test_the_digest_depends_on_the_number_format():
    assert len({tied(dtype).digest for dtype in FLOATS}) == len(FLOATS)


def test_number_formats_may_be_mixed(tmp_path):
    single = tied()
    kinds = list(FLOATS.values())
    tensors = {name: tensor.astype(kinds[n % 4]) for n, (name, tensor) in enumerate(single.tensors.items())}
    original = Checkpoint(single.config, tensors)
    checkpoint.save(original, tmp_path / "model.npz")
    assert_same(checkpoint.load(tmp_path / "model.npz"), original)


def test_numpy_alone_reads_the_bits_of_bfloat16(tied_file):
    original, path = tied_file
    with np.load(path) as archive:
        entries = json.loads(archive["manifest.json"])["tensors"]
        for name, tensor in original.tensors.items():
            assert entries[name]["dtype"] == "bfloat16"
            assert archive[name].dtype == np.uint16
            assert entries[name]["sha256"] == hashlib.sha256(archive[name].tobytes()).hexdigest()
            wide = (archive[name].astype(np.uint32) << 16).view(np.float32)  # as docs/checkpoint.md has it
            np.testing.assert_array_equal(wide, tensor.astype(np.float32))


STORED = "encoder.layers.0.attention.query.weight"


def assert_edit_refused(path, change, reason):
    rewrite(path, lambda content: edit_json(content, change))
    for level in ("open", "touched", "full"):
        with pytest.raises(CheckpointError, match=f"^{re.escape(f'cannot read {path}: ')}.*{reason}"):
            checkpoint.load(path, level)


@pytest.mark.parametrize(
    ("stored", "stated"),
    [
        ("float32", "bfloat16"),
        ("float16", "bfloat16"),
        ("float64", "bfloat16"),
        ("bfloat16", "float16"),
        ("bfloat16", "float32"),
        ("bfloat16", "uint16"),
        ("float16", "uint16"),
        ("float16", "float32"),
        ("bfloat16", "bfloat17"),
        ("bfloat16", None),
        ("bfloat16", ["bfloat16"]),
    ],
)
def test_a_manifest_of_another_number_format_is_refused(stored, stated, tmp_path):
    path = tmp_path / "model.npz"
    checkpoint.save(tied(stored), path)
    reason = rf"(manifest\.json and the tensor {STORED} disagree|{STORED} has dtype uint16, expected one of float64)"
    assert_edit_refused(path, lambda manifest: manifest["tensors"][STORED].update(dtype=stated), reason)


def test_integers_are_no_weights(tied_file):
    """The bytes that bfloat16 is stored in, called what they are."""
    _, path = tied_file

    def change(manifest):
        for entry in manifest["tensors"].values():
            if "dtype" in entry:
                entry["dtype"] = "uint16"

    assert_edit_refused(path, change, r"has dtype uint16, expected one of float64, float32, float16, bfloat16")


def test_a_tied_tensor_is_stored_once_and_named_twice(tied_file):
    original, path = tied_file
    assert original.aliases == {schema.MASKED_LM_TABLE: schema.TOKEN_TABLE}
    with zipfile.ZipFile(path) as archive:
        assert f"{schema.TOKEN_TABLE}.npy" in archive.namelist()
        assert f"{schema.MASKED_LM_TABLE}.npy" not in archive.namelist()
        entries = json.loads(archive.read("manifest.json"))["tensors"]
    assert entries[schema.MASKED_LM_TABLE] == {"alias": schema.TOKEN_TABLE}
    loaded = checkpoint.load(path)
    assert schema.MASKED_LM_TABLE not in loaded.tensors
    assert loaded.aliases == original.aliases


def test_an_alias_keeps_its_name_before_porting(tmp_path):
    plain = tied()
    names = {schema.MASKED_LM_TABLE: "cls.predictions.decoder.weight", schema.TOKEN_TABLE: "bert.word_embeddings"}
    original = Checkpoint(plain.config, plain.tensors, names)
    checkpoint.save(original, tmp_path / "model.npz")
    assert_same(checkpoint.load(tmp_path / "model.npz"), original)


@pytest.mark.parametrize(
    "change",
    [
        lambda entries: entries.pop(schema.MASKED_LM_TABLE),
        lambda entries: entries[schema.MASKED_LM_TABLE].update(alias=schema.MASKED_LM_TABLE),
        lambda entries: entries[schema.MASKED_LM_TABLE].update(alias="heads.pooler.weight"),
        lambda entries: entries[schema.MASKED_LM_TABLE].update(alias="nothing"),
        lambda entries: entries[schema.MASKED_LM_TABLE].update(alias=None),
        lambda entries: entries[schema.MASKED_LM_TABLE].update(alias=[schema.TOKEN_TABLE]),
        lambda entries: entries[schema.MASKED_LM_TABLE].update(entries[schema.TOKEN_TABLE]),
        lambda entries: entries.update(other={"alias": schema.TOKEN_TABLE}),
        lambda entries: entries.update({schema.TOKEN_TABLE: {"alias": schema.MASKED_LM_TABLE}}),
        lambda entries: entries.update({schema.TOKEN_TABLE: {"alias": schema.TOKEN_TABLE}}),
    ],
    ids=["missing", "itself", "wrong", "nowhere", "null", "list", "more fields", "extra", "a circle", "not stored"],
)
def test_other_aliases_than_those_of_the_configuration_are_refused(change, tied_file):
    _, path = tied_file
    assert_edit_refused(
        path, lambda manifest: change(manifest["tensors"]), r"manifest\.json (is damaged|has other alias)"
    )


def test_an_alias_without_a_tie_is_refused(saved):
    _, path = saved
    change = {schema.MASKED_LM_TABLE: {"alias": schema.TOKEN_TABLE}}
    assert_edit_refused(path, lambda manifest: manifest["tensors"].update(change), "has other aliases than its config")


def test_a_tied_tensor_that_is_stored_twice_is_refused(tied_file):
    _, path = tied_file
    with zipfile.ZipFile(path) as archive:
        table = archive.read(f"{schema.TOKEN_TABLE}.npy")
    rewrite(path, change={f"{schema.MASKED_LM_TABLE}.npy": table})
    with pytest.raises(CheckpointError, match=rf"unexpected {re.escape(schema.MASKED_LM_TABLE)}"):
        checkpoint.load(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda manifest: manifest.update(comment=""),
        lambda manifest: manifest["tensors"][STORED].update(comment=""),
        lambda manifest: manifest["tensors"][STORED].pop("axes"),
        lambda manifest: manifest["tensors"][STORED].update(source=3),
        lambda manifest: manifest["tensors"][STORED].update(source=None),
        lambda manifest: manifest["tensors"][STORED].update(sha256="0" * 63),
        lambda manifest: manifest["tensors"][STORED].update(sha256="G" * 64),
        lambda manifest: manifest["tensors"][STORED].update(sha256=0),
        lambda manifest: manifest["tensors"][STORED].update(shape=[24.0, 24.0]),
        lambda manifest: manifest["tensors"]["heads.pooler.bias"].update(shape=24),
        lambda manifest: manifest["config"].update(embedding_dropout=0),
        lambda manifest: manifest["config"].update(norm_eps="1e-12"),
        lambda manifest: manifest["config"].update(layers=10**400),
        lambda manifest: manifest["config"].update(layers=6),
        lambda manifest: manifest["config"].update(hidden_size=2**62),
    ],
)
def test_what_python_would_take_for_the_same_is_refused(change, saved):
    """Numbers of another kind, and fields that nobody knows: the next reader may see another checkpoint in them."""
    _, path = saved
    assert_edit_refused(path, change, "")


def test_a_configuration_of_before_a_field_was_added_is_read(saved):
    """Fields with a default may be missing; the digest does not cover what has its default."""
    original, path = saved
    rewrite(path, lambda content: edit_json(content, lambda manifest: manifest["config"].pop("tied_embeddings")))
    assert_same(checkpoint.load(path, "full"), original)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'{"schema": ', b'{"schema": "triglot.checkpoint/1", "schema": '),
        (b'"heads.pooler.bias": ', b'"heads.pooler.bias": {}, "heads.pooler.bias": '),
        (b'"embedding_dropout": 0.1', b'"embedding_dropout": NaN'),
        (b'"masking_value": null', b'"masking_value": -Infinity'),
        (b'"schema"', '"schéma"'.encode()),
        (b'{"schema": ', b'{"schema": ' + b"[" * 10**5),
        (b'{"schema": ', b'{"schema": ' + b"9" * 10**5 + b', "other": '),
        (b'{"schema": ', b'{"other": [' + b"{}," * 10**4 + b'0], "schema": '),
        (b"}}}", b"}}}" + b" " * 2**23),
    ],
    ids=["twice", "tensor twice", "nan", "infinity", "not ascii", "deep", "long number", "many objects", "large"],
)
def test_json_that_readers_take_differently_or_at_great_cost_is_refused(old, new, saved):
    _, path = saved
    with zipfile.ZipFile(path) as archive:
        content = json.dumps(json.loads(archive.read("manifest.json"))).encode()
    assert content.count(old) == 1
    rewrite(path, lambda _: content.replace(old, new))
    with pytest.raises(CheckpointError, match=r"manifest\.json (is damaged|has more than 8388608 bytes)"):
        checkpoint.load(path)


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(
        [schema.TOKEN_TABLE, schema.MASKED_LM_TABLE, "bfloat16", "uint16", "0" * 64, 24, 2, 0, -1, 1e-12]
    ),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(st.text(max_size=6), values, max_size=3),
    max_leaves=6,
)


def places(value, path=()):
    """The path to every part of a JSON value, itself included."""
    yield path
    for key, part in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(part, (*path, key))


def mutate(manifest, draw):
    """Replace, remove, rename, double or move one part of a manifest."""
    *path, last = draw(st.sampled_from([place for place in places(manifest) if place]))
    parent = manifest
    for key in path:
        parent = parent[key]
    action = draw(st.sampled_from(["replace", "replace", "remove", "rename", "swap"]))
    if action == "replace":
        parent[last] = draw(JSON_VALUES)
    elif action == "remove":
        del parent[last]
    elif action == "rename" and isinstance(parent, dict):
        parent[draw(st.text(max_size=5) | st.sampled_from(["alias", "source", "dtype", STORED]))] = parent.pop(last)
    else:
        other = draw(st.sampled_from(list(parent) if isinstance(parent, dict) else range(len(parent))))
        parent[last], parent[other] = parent[other], parent[last]


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """A small checkpoint with an alias, source names and bfloat16, and its file."""
    path = tmp_path_factory.mktemp("mixed") / "model.npz"
    half = tied("bfloat16")
    original = Checkpoint(half.config, half.tensors, {STORED: "query", schema.MASKED_LM_TABLE: "decoder"})
    checkpoint.save(original, path)
    return path, original


@given(data=st.data())
@settings(deadline=None, max_examples=300)
def test_a_manifest_of_any_form_is_read_or_refused(data, mixed):
    """With a right digest wherever one can be computed, so that what is behind the digest has its turn."""
    path, original = mixed
    with zipfile.ZipFile(path) as archive:
        manifest = json.loads(archive.read("manifest.json"))
    for _ in range(data.draw(st.integers(1, 3))):
        mutate(manifest, data.draw)
    if data.draw(st.booleans()):
        seal(manifest)
    mutant = path.with_name("mutant.npz")
    mutant.unlink(missing_ok=True)
    mutant.write_bytes(path.read_bytes())
    rewrite(mutant, lambda _: json.dumps(manifest).encode())
    with contextlib.suppress(CheckpointError):
        loaded = checkpoint.load(mutant, "full")
        # What is accepted is what was saved, or a configuration that differs where the tensors do not show it.
        assert loaded.digest == manifest["digest"]
        assert loaded.tensors.keys() == original.tensors.keys()
        if loaded.config == original.config:
            assert loaded.digest == original.digest


class Canary:
    """Leaves a mark in the file system when it is read from a pickle."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


def raw_pickle(protocol):
    return lambda canary, path: path.write_bytes(pickle.dumps({"weights": canary}, protocol))


def torch_pickle(canary, path):
    import torch

    torch.save({"weights": torch.zeros(3), "more": canary}, path)


def old_torch_pickle(canary, path):
    import torch

    torch.save({"weights": torch.zeros(3), "more": canary}, path, _use_new_zipfile_serialization=False)


def npy_pickle(canary, path):
    np.savez(path.with_suffix(".npz"), weights=np.zeros(3), more=np.array([canary], dtype=object))
    path.with_suffix(".npz").rename(path)


def record_pickle(canary, path):
    np.savez(path.with_suffix(".npz"), more=np.array([(1, canary)], [("number", "i4"), ("object", "O")]))
    path.with_suffix(".npz").rename(path)


PICKLES = {
    **{f"protocol {protocol}": raw_pickle(protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)},
    "torch.save": torch_pickle,
    "old torch.save": old_torch_pickle,
    "numpy.savez of objects": npy_pickle,
    "numpy.savez of records": record_pickle,
}


@pytest.mark.parametrize("suffix", [".npz", ".pt", ".pdparams", ".bin"])
@pytest.mark.parametrize("kind", PICKLES)
def test_a_pickle_is_refused_and_never_run(kind, suffix, tmp_path):
    mark, path = tmp_path / "mark", tmp_path / f"model{suffix}"
    PICKLES[kind](Canary(mark), path)
    what = "more" if "numpy" in kind else "it"
    assert_load_refused(
        path,
        f"cannot read {path}: {what} is a pickle; pickles are never read, because they can run any code: "
        "save the model as safetensors where it was made",
    )
    assert not mark.exists()


def test_what_paddle_saves_is_refused_as_a_pickle(tmp_path):
    import paddle

    path = tmp_path / "model.pdparams"
    paddle.save({"weight": paddle.zeros([3])}, str(path))
    assert_load_refused(path, f"cannot read {path}: it is a pickle; pickles are never read")


def test_the_canary_sings(tmp_path):
    """The guard of the tests above: reading such a pickle does leave a mark."""
    mark = tmp_path / "mark"
    pickle.loads(pickle.dumps({"weights": Canary(mark)}))
    assert mark.exists()


def mapping_of(array):
    """What an array is a view of, in the end."""
    while isinstance(array, np.ndarray):
        array = array.base
    return array


@pytest.mark.parametrize(("dtype", "shared"), [("float32", True), ("bfloat16", False), ("float64", False)])
def test_pytorch_computes_with_the_mapped_file_itself(dtype, shared, saved):
    """Nothing is copied where nothing has to be converted: each parameter lies inside the mapping."""
    _, path = saved
    loaded = checkpoint.load(path)
    model = impls.build("torch", loaded, dtype=dtype)
    starts = [tensor.ctypes.data for tensor in loaded.tensors.values()]
    start, end = min(starts), max(starts) + path.stat().st_size
    assert end - start < 2 * path.stat().st_size
    parameters = dict(model.backend.transformer.named_parameters())
    assert parameters.keys() == loaded.tensors.keys()
    for name, parameter in parameters.items():
        assert (parameter.data_ptr() == loaded.tensors[name].ctypes.data) == shared, name
        assert isinstance(mapping_of(loaded.tensors[name]), mmap.mmap), name
        if shared:
            assert start <= parameter.data_ptr() <= parameter.data_ptr() + parameter.nbytes <= end


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="only Linux says what is mapped where")
def test_the_benchmark_sees_the_same(saved):
    found = checkpoints.sharing(saved[1])
    assert found["inside"] == found["parameters"] == len(saved[0].tensors)
    assert found["bytes"] == sum(tensor.nbytes for tensor in saved[0].tensors.values())


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="only Linux says what was read")
def test_one_tensor_is_read_without_the_others(make_checkpoint, tmp_path):
    """The benchmark of a large file, with a small one."""
    config = replace(recipe("bert-base-tiny"), hidden_size=256, layers=3, heads=4, key_size=64, value_size=64)
    original, path = make_checkpoint(replace(config, feed_forward_size=1024)), tmp_path / "model.npz"
    checkpoint.save(original, path)
    (found,) = checkpoints.measure("one_tensor", path, 1)
    assert found["bytes"] == 256 * 1024 * 4
    assert path.stat().st_size > 8 * found["bytes"]
    # Pages come in groups of 16 around those that are asked for; half a megabyte is for what Python itself needs.
    assert found["resident"] < found["bytes"] + 2**19
    assert found["calls"] < 2**17


DOCUMENT = Path(__file__).parents[2] / "docs" / "checkpoint.md"


@pytest.mark.parametrize("kind", ["bert-base-tiny", "dygraph-tiny", "translation-tiny", "tied"])
def test_the_document_reads_and_verifies_a_checkpoint_without_us(kind, make_checkpoint, tmp_path, monkeypatch):
    original = tied("bfloat16") if kind == "tied" else make_checkpoint(kind)
    checkpoint.save(original, tmp_path / "model.npz")
    monkeypatch.chdir(tmp_path)
    reading, verifying = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert "triglot" not in reading + verifying
    found = {}
    exec(reading + verifying, found)
    assert found["tensors"].keys() == {*original.tensors, *original.aliases}
    for name, tensor in original.tensors.items():
        np.testing.assert_array_equal(found["tensors"][name], tensor.astype(np.float32), err_msg=name)
    for alias, name in original.aliases.items():
        assert found["tensors"][alias] is found["tensors"][name]
    assert found["manifest"]["digest"] == original.digest
    defaults = {field.name: field.default for field in fields(ModelConfig) if field.default is not MISSING}
    assert found["defaults"] == {**defaults, "heads_on_top": []}


def test_the_verification_of_the_document_notices_damage(damaged, monkeypatch):
    monkeypatch.chdir(damaged.parent)
    blocks = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    with pytest.raises((AssertionError, zipfile.BadZipFile)):
        exec("".join(blocks), {})
