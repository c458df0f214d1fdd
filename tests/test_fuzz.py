"""Damage of every kind to a checkpoint file: either nothing that counts was hit, or it is refused by an error of ours.

``make fuzz`` runs a million mutations; the tests run as many as fit into a few seconds.
"""

import random

import pytest

import triglot

SEEDS = range(8)


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A small checkpoint: its bytes, its digest, and where its manifest begins."""
    path = tmp_path_factory.mktemp("fuzz") / "model.npz"
    checkpoint = triglot.initialize("bert-base-tiny")
    triglot.save(checkpoint, path)
    content = path.read_bytes()
    return content, checkpoint.digest, content.rindex(b'{\n "schema"')


def load(content, path):
    """The digest of what is read, or None if it is refused; any other outcome is a failure of the test."""
    path.write_bytes(content)
    try:
        return triglot.load(path, "full").digest
    except triglot.CheckpointError:
        return None


def truncated(content, _, generator):
    return content[: generator.randrange(len(content))]


def bit_flipped(content, _, generator):
    return flip(content, generator.randrange(len(content)), generator)


def bit_of_the_manifest_or_directory_flipped(content, manifest, generator):
    return flip(content, generator.randrange(manifest, len(content)), generator)


def part_repeated(content, _, generator):
    start, place = generator.randrange(len(content)), generator.randrange(len(content))
    return content[:place] + content[start : start + generator.randrange(1, 300)] + content[place:]


def part_removed(content, _, generator):
    start = generator.randrange(len(content))
    return content[:start] + content[start + generator.randrange(1, 200) :]


def flip(content, place, generator):
    changed = bytearray(content)
    changed[place] ^= 1 << generator.randrange(8)
    return bytes(changed)


MUTATIONS = (truncated, bit_flipped, bit_of_the_manifest_or_directory_flipped, part_repeated, part_removed)


@pytest.mark.parametrize("seed", SEEDS)
def test_damage_is_harmless_or_refused(seed, original, tmp_path, pytestconfig):
    content, digest, manifest = original
    generator = random.Random(seed)
    outcomes = {digest: 0, None: 0}
    for _ in range(pytestconfig.getoption("--mutations") // len(SEEDS)):
        mutation = generator.choice(MUTATIONS)
        outcomes[load(mutation(content, manifest, generator), tmp_path / "mutant.npz")] += 1
    # Both occur: an unread time stamp is harmless, and most damage is not.
    assert all(outcomes.values()), outcomes


def test_the_fuzzer_notices_damage_that_is_read(original, tmp_path):
    """The guard itself: a content of another digest would be a KeyError above."""
    content, digest, _ = original
    assert load(content, tmp_path / "same.npz") == digest
    assert load(flip(content, content.index(b"\x93NUMPY") + 200, random.Random(0)), tmp_path / "other.npz") is None
