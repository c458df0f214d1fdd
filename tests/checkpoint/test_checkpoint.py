"""Saving and loading: what is saved is loaded, NumPy can read it, and damaged tensors are noticed."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from checkpoint_files import LEVELS, STORED, assert_same, flip_a_bit, read_members, sha256, tied

from triglot.shared import checkpoint
from triglot.shared.arrays import FLOATS
from triglot.shared.checkpoint import Checkpoint, manifest
from triglot.shared.errors import CheckpointError, OutputError
from triglot.shared.model import schema
from triglot.shared.model.config import ModelConfig
from triglot.shared.model.recipes import recipe, recipes

DAMAGED = "encoder.layers.1.feed_forward.inner.weight"


def mixed():
    original, dtypes = tied(), list(FLOATS.values())
    tensors = {name: tensor.astype(dtypes[i % 4]) for i, (name, tensor) in enumerate(original.tensors.items())}
    return Checkpoint(original.config, tensors)


def ported():
    original = tied()
    names = {schema.MASKED_LM_TABLE: "cls.decoder.weight", "heads.pooler.bias": "poolér.bias"}
    return Checkpoint(original.config, original.tensors, names)


MADE = {**{f"tied {dtype}": lambda dtype=dtype: tied(dtype) for dtype in FLOATS}, "mixed": mixed, "ported": ported}
TINY = [name for name in recipes() if name.endswith("-tiny")]


@pytest.fixture
def saved(make_checkpoint, tmp_path):
    """A checkpoint and the file that it was saved to."""
    original = make_checkpoint("bert-base-tiny")
    checkpoint.save(original, tmp_path / "model.npz")
    return original, tmp_path / "model.npz"


@pytest.mark.parametrize("verify", LEVELS)
@pytest.mark.parametrize("name", [*TINY, *MADE])
def test_load_returns_what_was_saved(name, verify, make_checkpoint, tmp_path):
    original = MADE[name]() if name in MADE else make_checkpoint(name)
    first, second = str(tmp_path / "first.npz"), tmp_path / "second.npz"
    checkpoint.save(original, first)
    loaded = checkpoint.load(first, verify)
    assert_same(loaded, original)
    checkpoint.save(loaded, second)
    assert second.read_bytes() == (tmp_path / "first.npz").read_bytes()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_numpy_alone_reads_tensors_and_manifest(dtype, tmp_path):
    original, path = tied(dtype), tmp_path / "model.npz"
    checkpoint.save(original, path)
    with np.load(path) as archive:
        assert archive.files == [*sorted(original.tensors), "manifest.json"]
        fields = json.loads(archive["manifest.json"])
        entries = fields["tensors"]
        for name, tensor in original.tensors.items():
            stored = archive[name]
            assert stored.dtype == (np.uint16 if dtype == "bfloat16" else np.float32)
            assert stored.tobytes() == tensor.tobytes()
            facts = {"dtype": dtype, "shape": list(tensor.shape), "sha256": sha256(stored.tobytes())}
            axes = entries[name].pop("axes")
            assert entries[name] == facts
            assert len(axes) == tensor.ndim
    assert list(fields) == ["schema", "digest", "config", "tensors"]
    assert fields["schema"] == "triglot.checkpoint/1"
    assert fields["digest"] == original.digest
    assert ModelConfig.from_dict(fields["config"]) == original.config


def test_a_tied_tensor_is_stored_once_under_two_names(tmp_path):
    original = tied()
    checkpoint.save(original, tmp_path / "model.npz")
    fields, members = read_members(tmp_path / "model.npz")
    assert f"{schema.MASKED_LM_TABLE}.npy" not in members
    assert fields["tensors"][schema.MASKED_LM_TABLE] == {"alias": schema.TOKEN_TABLE}
    assert fields["tensors"][schema.TOKEN_TABLE]["axes"] == ["vocabulary", "hidden"]
    loaded = checkpoint.load(tmp_path / "model.npz")
    assert schema.MASKED_LM_TABLE not in loaded.tensors
    assert loaded.aliases == {schema.MASKED_LM_TABLE: schema.TOKEN_TABLE}


def test_digest_ignores_order_layout_and_source_names(make_checkpoint):
    original = make_checkpoint("bert-base-tiny")
    tensors = {name: np.asfortranarray(original.tensors[name]) for name in reversed(original.tensors)}
    assert list(tensors) != list(original.tensors)
    assert Checkpoint(original.config, tensors, {"heads.pooler.bias": "b"}).digest == original.digest


def test_digest_changes_with_config_dtype_and_every_tensor(make_checkpoint):
    original = make_checkpoint("bert-base-tiny")
    config, tensors = original.config, original.tensors
    key = STORED.replace("query", "key")
    others = [
        Checkpoint(replace(config, norm_eps=1e-5), tensors),
        Checkpoint(replace(config, activation="relu"), tensors),
        Checkpoint(replace(config, pad_id=None), tensors),
        Checkpoint(config, {**tensors, STORED: tensors[key], key: tensors[STORED]}),
    ]
    for name in tensors:
        changed = tensors[name].copy()
        changed.view(np.uint32).flat[-1] ^= 1
        others.append(Checkpoint(config, {**tensors, name: changed}))
    others += [tied(dtype) for dtype in FLOATS]
    assert len({original.digest, *(other.digest for other in others)}) == 1 + len(others)


def test_bytes_do_not_depend_on_the_order_of_tensors(saved, tmp_path):
    original, path = saved
    reordered = Checkpoint(original.config, {name: original.tensors[name] for name in reversed(original.tensors)})
    checkpoint.save(reordered, tmp_path / "again.npz")
    assert (tmp_path / "again.npz").read_bytes() == path.read_bytes()


def test_save_can_replace_the_file_that_was_loaded(saved):
    original, path = saved
    loaded = checkpoint.load(path)
    checkpoint.save(loaded, path)
    assert_same(loaded, original)
    assert_same(checkpoint.load(path), original)


def test_save_does_not_change_the_checkpoint(saved, make_checkpoint):
    original, _ = saved
    unsaved = make_checkpoint("bert-base-tiny")
    assert_same(original, unsaved)
    assert list(original.tensors) == list(unsaved.tensors)


def test_writing_into_a_loaded_tensor_does_not_change_the_file(saved):
    original, path = saved
    checkpoint.load(path).tensors["heads.pooler.bias"][:] = 7
    assert_same(checkpoint.load(path, "full"), original)


def test_tensors_of_another_configuration_are_refused(make_checkpoint):
    original = make_checkpoint("bert-base-tiny")
    with pytest.raises(CheckpointError, match=r"missing embeddings\.task\.weight \(16, 24\)"):
        Checkpoint(recipe("ernie-base-tiny"), original.tensors)


def test_damaged_numbers_are_noticed_when_they_are_verified(saved):
    original, path = saved
    flip_a_bit(path, original.tensors[DAMAGED])
    refusal = rf"cannot read {re.escape(str(path))}: the checksum of {DAMAGED} is wrong"
    assert np.isfinite(checkpoint.load(path, "open").tensors[DAMAGED]).all()
    with pytest.raises(CheckpointError, match=refusal):
        checkpoint.load(path, "full")
    tensors = checkpoint.load(path, "touched").tensors
    assert all(tensors[name].size for name in tensors.keys() - {DAMAGED})
    for _ in range(2):  # a second access is refused too
        with pytest.raises(CheckpointError, match=refusal):
            tensors[DAMAGED]
    assert all(tensors[name].size for name in tensors.keys() - {DAMAGED})


def test_a_wrong_verify_is_refused(saved):
    with pytest.raises(CheckpointError, match="verify is 'all'; expected one of open, touched, full"):
        checkpoint.load(saved[1], "all")  # pyright: ignore[reportArgumentType]


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"model\.npz does not exist"):
        checkpoint.load(tmp_path / "model.npz")


def test_a_manifest_that_is_too_long_is_not_written(make_checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr(manifest, "LONGEST", 1000)
    with pytest.raises(OutputError, match=r"manifest has \d+ bytes, expected at most 1000"):
        checkpoint.save(make_checkpoint("bert-base-tiny"), tmp_path / "model.npz")
    assert list(tmp_path.iterdir()) == []
