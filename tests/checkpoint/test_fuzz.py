"""A damaged checkpoint file is refused with a CheckpointError, or the damage affects nothing that is read.

``fuzzing.py`` damages the files. ``make fuzz`` runs everything and a million random mutations; these tests run a
small part.
"""

import contextlib
import itertools
import zipfile

import fuzzing
import numpy as np
import pytest

from triglot.shared.errors import CheckpointError

SEEDS = range(4)
# Every 7th length, every 241st bit flip and every 13th integer. 241 is odd, so each of the eight bits of a byte is
# flipped somewhere in the headers.
STRIDES = {"truncations": 7, "flips": 241, "integers": 13}
# Reading allocates a few megabytes at most; a larger file may need the rest of the 64 MB.
MOST_GROWTH = 8 << 20


def count_outcomes(outcomes):
    """How many files were refused, and how many were read with the same digest."""
    refused = sum(number for name, number in outcomes.items() if name.endswith(": refused"))
    same = sum(number for name, number in outcomes.items() if name.endswith(": same digest"))
    assert refused + same == sum(outcomes.values())
    return refused, same


@pytest.mark.parametrize("kind", ["truncations", "flips", "integers"])
def test_damage_anywhere_is_refused_or_harmless(kind, tmp_path):
    report = fuzzing.part_of(kind, tmp_path, stride=STRIDES[kind])
    refused, same = count_outcomes(report["outcomes"])
    size = (tmp_path / "original.npz").stat().st_size
    assert refused > {"truncations": -(-size // 7) - 1, "flips": size // 40, "integers": 150}[kind]
    # Time stamps, for example, are never read. A truncated file is never complete.
    assert (same > 0) == (kind != "truncations"), report
    assert report["growth"] < MOST_GROWTH


@pytest.mark.parametrize("seed", SEEDS)
def test_random_damage_is_refused_or_harmless(seed, tmp_path, pytestconfig):
    count = pytestconfig.getoption("--mutations") // len(SEEDS)
    report = fuzzing.part_of("mutations", tmp_path, part=seed, count=count)
    refused, same = count_outcomes(report["outcomes"])
    assert refused + same == count
    assert refused > same > 0
    kinds = {name.split(":")[0] for name in report["outcomes"]}
    assert kinds == {mutation.__name__.replace("_", " ") for mutation in fuzzing.MUTATIONS} | {"several of these"}
    assert report["growth"] < MOST_GROWTH


def test_files_designed_to_use_much_memory_are_refused_cheaply(tmp_path):
    outcomes = fuzzing.part_of("bombs", tmp_path)["outcomes"]
    assert set(outcomes.values()) == {1}
    assert count_outcomes(outcomes) == (len(outcomes), 0)
    assert len(outcomes) > 8


@pytest.mark.parametrize(
    ("reader", "problem"),
    [
        ("blind", "read with another digest, 0000"),
        ("careless", "JSONDecodeError|UnicodeDecodeError"),
        ("slow", "TimeoutError: reading takes too long"),
        ("crashing", "exit code -6"),
        ("greedy", "MemoryError"),
    ],
)
def test_a_wrong_reader_is_noticed(reader, problem, tmp_path):
    with pytest.raises(AssertionError, match=problem):
        fuzzing.part_of("mutations", tmp_path, count=3, reader=reader, seconds=1)
    assert (tmp_path / "mutant.npz").exists(), "the file is kept"


def test_memory_just_below_the_limit_is_accepted(tmp_path):
    """So it is the limit that stops the greedy reader."""
    report = fuzzing.part_of("mutations", tmp_path, count=3, reader="modest")
    assert report["growth"] > fuzzing.MEMORY // 2


@pytest.mark.long
def test_flips_include_every_bit_of_the_headers(tmp_path):
    target = fuzzing.Target(tmp_path)
    length = -(-len(target.content) // 8) * 8  # compare eight bytes at once, because there are 200,000 flips
    original, flipped = np.frombuffer(target.content.ljust(length), "<u8"), []
    for _, content in fuzzing.flips(target):
        change = np.frombuffer(content.ljust(length), "<u8") ^ original
        (place,) = np.flatnonzero(change)
        bits = int(change[place])
        assert bits.bit_count() == 1
        flipped.append(64 * int(place) + bits.bit_length() - 1)
    assert sorted(flipped) == [8 * place + bit for place in target.headers for bit in range(8)]
    payloads = len(target.content) - len(target.headers)
    assert 0 < payloads < 1000, "all but the few numbers of the tensors is headers"


def test_the_same_seed_does_the_same_damage(tmp_path):
    target = fuzzing.Target(tmp_path)
    first, again, other = (
        [next(mutations) for _ in range(50)] for mutations in (fuzzing.mutations(target, seed) for seed in (0, 0, 1))
    )
    assert first == again != other


@pytest.mark.long
def test_numpy_reads_the_same_tensors_from_accepted_files(tmp_path):
    """NumPy may refuse a damaged time stamp, but it never reads other numbers."""
    target, path, accepted = fuzzing.Target(tmp_path), tmp_path / "mutant.npz", 0
    with np.load(tmp_path / "original.npz") as original:
        expected = {name: original[name].tobytes() for name in original.files if name != "manifest.json"}
    source = itertools.chain(
        itertools.islice(fuzzing.flips(target), 0, None, 251),
        itertools.islice(fuzzing.integers(target), 0, None, 41),
        itertools.islice(fuzzing.mutations(target, 99), 200),
    )
    for _, content in source:
        path.unlink(missing_ok=True)
        path.write_bytes(content)
        with contextlib.suppress(CheckpointError):
            fuzzing.digest_of(path)
            # NumPy does not close a file that its zip reader refuses, so it gets an open one.
            refusals = contextlib.suppress(zipfile.BadZipFile, NotImplementedError)
            with path.open("rb") as file, refusals, np.load(file) as theirs:
                assert {name: theirs[name].tobytes() for name in theirs.files if name != "manifest.json"} == expected
                accepted += 1
    assert accepted > 40
