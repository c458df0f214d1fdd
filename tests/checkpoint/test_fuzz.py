"""Damage of every kind to a checkpoint file: either nothing that counts was hit, or it is refused by an error of ours.

``fuzzing.py`` does the damage. ``make fuzz`` runs all of it and a million random mutations; the tests run as many as
fit into half a minute.
"""

import contextlib
import importlib.util
import itertools
import zipfile
from pathlib import Path

import numpy as np
import pytest

from triglot.shared.errors import CheckpointError

SPEC = importlib.util.spec_from_file_location("fuzzing", Path(__file__).parents[1] / "helpers" / "fuzzing.py")
assert SPEC is not None
assert SPEC.loader is not None
fuzzing = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(fuzzing)

SEEDS = range(4)
# Every 11th bit flip and every 3rd integer: strides that have no factor in common with the bits of a byte, so each
# kind of header is hit in each of its bits. All of them are for make fuzz.
STRIDES = {"truncations": 1, "flips": 31, "integers": 3, "bombs": 1}
# Reading allocates a few megabytes at most; the rest of the 64 MB is for what a larger file may need.
MOST_GROWTH = 8 << 20


def sums(outcomes):
    """How many were refused, and how many read."""
    refused = sum(number for name, number in outcomes.items() if name.endswith(": refused"))
    same = sum(number for name, number in outcomes.items() if name.endswith(": same digest"))
    assert refused + same == sum(outcomes.values())
    return refused, same


@pytest.mark.parametrize("kind", ["truncations", "flips", "integers"])
def test_damage_in_every_place_is_harmless_or_refused(kind, tmp_path):
    found = fuzzing.part_of(kind, tmp_path, stride=STRIDES[kind])
    refused, same = sums(found["outcomes"])
    size = (tmp_path / "original.npz").stat().st_size
    assert refused > {"truncations": size - 1, "flips": size // 5, "integers": 700}[kind]
    # A time stamp, say, is read by nobody; a file that was cut off is never whole.
    assert (same > 0) == (kind != "truncations"), found
    assert found["growth"] < MOST_GROWTH


@pytest.mark.parametrize("seed", SEEDS)
def test_random_damage_is_harmless_or_refused(seed, tmp_path, pytestconfig):
    count = pytestconfig.getoption("--mutations") // len(SEEDS)
    found = fuzzing.part_of("mutations", tmp_path, part=seed, count=count)
    refused, same = sums(found["outcomes"])
    assert refused + same == count
    assert refused > same > 0
    kinds = {name.split(":")[0] for name in found["outcomes"]}
    assert kinds == {mutation.__name__.replace("_", " ") for mutation in fuzzing.MUTATIONS} | {"several of these"}
    assert found["growth"] < MOST_GROWTH


def test_files_that_are_made_to_cost_much_are_refused_cheaply(tmp_path):
    outcomes = fuzzing.part_of("bombs", tmp_path)["outcomes"]
    assert set(outcomes.values()) == {1}
    assert sums(outcomes) == (len(outcomes), 0)
    assert len(outcomes) > 8


@pytest.mark.parametrize(
    ("reader", "complaint"),
    [
        ("blind", "it was read with another digest, 0000"),
        ("careless", "JSONDecodeError|UnicodeDecodeError"),
        ("slow", "TimeoutError: reading it takes too long"),
        ("crashing", "exit code -6"),
        ("greedy", "MemoryError"),
    ],
)
def test_a_reader_that_is_wrong_is_noticed(reader, complaint, tmp_path):
    with pytest.raises(AssertionError, match=complaint):
        fuzzing.part_of("mutations", tmp_path, count=3, reader=reader, seconds=1)
    assert (tmp_path / "mutant.npz").exists(), "what it was wrong about is kept"


def test_memory_just_below_the_limit_is_no_complaint(tmp_path):
    """So it is the limit that catches the greedy reader, and not something else."""
    found = fuzzing.part_of("mutations", tmp_path, count=3, reader="modest")
    assert found["growth"] > fuzzing.MEMORY // 2


def test_every_bit_of_the_headers_is_among_the_flips(tmp_path):
    target = fuzzing.Target(tmp_path)
    length = -(-len(target.content) // 8) * 8  # eight bytes are compared at once: there are 200,000 flips
    original, flipped = np.frombuffer(target.content.ljust(length), "<u8"), []
    for _, content in fuzzing.flips(target):
        change = np.frombuffer(content.ljust(length), "<u8") ^ original
        (place,) = np.flatnonzero(change)
        bits = int(change[place])
        assert bits.bit_count() == 1
        flipped.append(64 * int(place) + bits.bit_length() - 1)
    assert sorted(flipped) == [8 * place + bit for place in target.headers for bit in range(8)]
    payloads = len(target.content) - len(target.headers)
    assert 0 < payloads < 1000, "but for the few numbers of the tensors, the file is headers"


def test_the_same_seed_does_the_same_damage(tmp_path):
    target = fuzzing.Target(tmp_path)
    first, again, other = (
        [next(mutations) for _ in range(50)] for mutations in (fuzzing.mutations(target, seed) for seed in (0, 0, 1))
    )
    assert first == again != other


def test_numpy_sees_no_other_tensors_in_what_is_accepted(tmp_path):
    """Damage to a time stamp may make its zip reader refuse a file, but it never reads another content."""
    target, path, accepted = fuzzing.Target(tmp_path), tmp_path / "mutant.npz", 0
    with np.load(tmp_path / "original.npz") as original:
        expected = {name: original[name].tobytes() for name in original.files if name != "manifest.json"}
    source = itertools.chain(
        itertools.islice(fuzzing.flips(target), 0, None, 41),
        itertools.islice(fuzzing.integers(target), 0, None, 7),
        itertools.islice(fuzzing.mutations(target, 99), 1000),
    )
    for _, content in source:
        path.unlink(missing_ok=True)
        path.write_bytes(content)
        with contextlib.suppress(CheckpointError):
            fuzzing.digest_of(path)
            # NumPy closes no file that its zip reader refuses, so it is given one that is open.
            refusals = contextlib.suppress(zipfile.BadZipFile, NotImplementedError)
            with path.open("rb") as file, refusals, np.load(file) as theirs:
                assert {name: theirs[name].tobytes() for name in theirs.files if name != "manifest.json"} == expected
                accepted += 1
    assert accepted > 100
