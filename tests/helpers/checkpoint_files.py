"""Checkpoints to test with, and tools that change their files: members replaced, manifests edited, bits flipped."""

import contextlib
import hashlib
import json
import zipfile
from dataclasses import replace

import numpy as np

from triglot.shared.arrays import BFLOAT16, FLOATS
from triglot.shared.checkpoint import Checkpoint, npz
from triglot.shared.errors import ConfigError
from triglot.shared.model.config import ModelConfig
from triglot.shared.model.initializers import initialize
from triglot.shared.model.recipes import recipe

LEVELS = ("open", "touched", "full")
STORED = "encoder.layers.0.attention.query.weight"


def tied(dtype="float32"):
    """A checkpoint with a tied head, in any number format. All formats can hold its numbers exactly."""
    config = replace(recipe("bert-base-tiny"), heads_on_top=("pooler", "masked_lm"), tied_embeddings=True)
    tensors = {name: tensor.astype(BFLOAT16).astype(FLOATS[dtype]) for name, tensor in initialize(config, 3).items()}
    return Checkpoint(config, tensors)


def assert_same(checkpoint, expected):
    assert checkpoint.config == expected.config
    assert checkpoint.source_names == expected.source_names
    assert checkpoint.aliases == expected.aliases
    assert checkpoint.digest == expected.digest
    assert_same_tensors(checkpoint.tensors, expected.tensors)


def assert_same_tensors(tensors, expected):
    assert tensors.keys() == expected.keys()
    for name, tensor in expected.items():
        assert tensors[name].dtype == tensor.dtype, name
        np.testing.assert_array_equal(tensors[name], tensor, err_msg=name)


def read_members(path):
    """The manifest, and the content of every other member by name."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    return json.loads(members.pop("manifest.json")), members


def write_members(path, manifest, members):
    """Write a checkpoint file. ``manifest`` is JSON, bytes, or None for a file without it."""
    content = json.dumps(manifest).encode() if isinstance(manifest, dict) else manifest
    with path.open("w+b") as file, npz.Writer(file) as writer:
        for name in members:
            writer.write_bytes(name, members[name])
        if content is not None:
            writer.write_bytes("manifest.json", content)


def edit_manifest(path, change):
    """Change the manifest and correct its digests, so that the checks behind the digests are reached."""
    manifest, members = read_members(path)
    change(manifest)
    seal(manifest)
    write_members(path, manifest, members)


def seal(manifest):
    """Correct the digests of a manifest, where they can be computed."""
    with contextlib.suppress(KeyError, TypeError, AttributeError):
        training = {name: value for name, value in manifest["training"].items() if name != "digest"}
        manifest["training"]["digest"] = _hash(training)
    with contextlib.suppress(KeyError, TypeError, AttributeError):
        manifest["text"]["digest"] = _hash(
            {name: value for name, value in manifest["text"].items() if name != "digest"}
        )
    with contextlib.suppress(KeyError, TypeError, AttributeError, ConfigError):
        stored = {name: entry for name, entry in manifest["tensors"].items() if "alias" not in entry}
        tensors = {name: {key: entry[key] for key in ("dtype", "shape", "sha256")} for name, entry in stored.items()}
        manifest["digest"] = _hash({"config": ModelConfig.from_dict(manifest["config"]).identity(), "tensors": tensors})


def flip_a_bit(path, array):
    """Damage the numbers of ``array`` in the file."""
    content, payload = bytearray(path.read_bytes()), array.tobytes()
    assert content.count(payload) == 1
    content[content.index(payload) + len(payload) // 2] ^= 1
    path.write_bytes(content)


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def _hash(content):
    return sha256(json.dumps(content, sort_keys=True).encode())
