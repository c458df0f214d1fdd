"""Damaged ``.pt`` files, and zip archives that PyTorch does not write, are refused in one line."""

import collections
import io
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_archives import ALONE, FOUR, archive_of, assert_refused, numbers

from triglot.shared.errors import PortingError
from triglot.shared.porting.containers import torch as torch_file
from triglot.shared.porting.containers import torch_pickle
from triglot.shared.porting.containers import zip as zip_file


def test_a_torchscript_program_is_refused(path):
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("run/data.pkl", "run/constants.pkl", "run/code/__torch__.py"):
            archive.writestr(name, b"")
    assert_refused(path, f"it is a TorchScript program; {ALONE}")


@pytest.mark.parametrize(("names", "count"), [((), 0), (("a/data.pkl", "b/data.pkl"), 2), (("a/b/data.pkl",), 0)])
def test_an_archive_without_exactly_one_pickle_is_refused(names, count, path):
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("something", *names):
            archive.writestr(name, b"")
    assert_refused(path, f"it has {count} members NAME/data.pkl, expected one")


def test_a_compressed_archive_is_refused(path):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(1000))
    assert_refused(path, "member archive/data.pkl is compressed")


def test_a_repeated_member_is_refused(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", b"")
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("archive/data.pkl", b"")
    assert_refused(path, "member archive/data.pkl occurs twice")


def test_too_many_members_are_refused(path, monkeypatch):
    monkeypatch.setattr(zip_file, "MOST_MEMBERS", 4)
    archive_of(path, b"", FOUR)
    assert zip_file.read(path).keys() == {f"archive/{name}" for name in ("data.pkl", "byteorder", "version", "data/0")}
    archive_of(path, b"", {"0": b"", "1": b""})
    assert_refused(path, "it has 5 members, expected at most 4")


def test_members_that_are_larger_than_the_file_are_refused(path):
    """Such a file can be small, and its members fill the memory."""
    archive_of(path, b"", {"0": bytes(1000), "1": bytes(10)})
    content = bytearray(path.read_bytes())
    start = content.rindex(b"PK\x01\x02")
    content[start + 20 : start + 28] = struct.pack("<II", 10**9, 10**9)
    path.write_bytes(content)
    assert_refused(path, "its members are larger than the file")


@pytest.mark.parametrize("content", [b"", b"PK", b"PK\x03\x04", b"anything"])
def test_other_files_are_refused(content, path):
    path.write_bytes(content)
    assert_refused(path, "File is not a zip file")


def test_a_missing_file_is_refused(path):
    assert_refused(path, "No such file or directory; restore it")


# Where the number is: in the directory, where the member begins; in the end record, where the directory begins.
@pytest.mark.parametrize(("record", "place"), [(b"PK\x01\x02", 42), (b"PK\x05\x06", 16)])
def test_a_member_outside_of_the_file_is_refused(record, place, path):
    """zipfile moves all members by the difference of two offsets, which may be wrong, and does not check the result."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a", b"content")
    content = bytearray(path.read_bytes())
    start = content.rindex(record) + place
    content[start : start + 4] = (1 << 31).to_bytes(4, "little")
    path.write_bytes(content)
    with pytest.raises(PortingError, match=r"^cannot read .*: member a does not begin inside the file; restore"):
        zip_file.read(path)


def test_a_damaged_number_is_noticed(path):
    torch.save({"a": numbers(100)}, path)
    content = bytearray(path.read_bytes())
    content[content.index(numbers(100).numpy().tobytes()) + 7] ^= 1
    path.write_bytes(content)
    with pytest.raises(PortingError, match=r"^cannot read .*: Bad CRC-32 for file '.*/data/0'"):
        torch_file.read(path)


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A small file that PyTorch wrote."""
    path = tmp_path_factory.mktemp("sound") / "run.pt"
    base = numbers(3, 4)
    torch.save(collections.OrderedDict(a=base, b=base.T[1:], c=torch.nn.Parameter(numbers(2))), path)
    return path.read_bytes()


def assert_read_or_refused(path, content):
    path.write_bytes(content)
    try:
        tensors, message = torch_file.read(path), None
    except PortingError as error:
        tensors, message = {}, str(error)
    assert message is None or message.startswith(f"cannot read {path}: ")
    assert message is None or "\n" not in message
    assert all(isinstance(array, np.ndarray) for array in tensors.values())
    return "read" if message is None else "refused"


def test_every_truncation_is_refused(sound, path):
    for length in range(0, len(sound), 7):
        assert assert_read_or_refused(path, sound[:length]) == "refused", length


def test_a_flipped_bit_is_refused_or_harmless(sound, path):
    outcomes = [
        assert_read_or_refused(
            path, sound[: bit // 8] + bytes([sound[bit // 8] ^ 1 << bit % 8]) + sound[bit // 8 + 1 :]
        )
        for bit in range(0, 8 * len(sound), 37)
    ]
    assert {"refused", "read"} == set(outcomes)  # time stamps and padding are harmless


def repaired(sound, place, change):
    """Change the pickle and correct its checksum, so that the damage reaches the machine."""
    with zipfile.ZipFile(io.BytesIO(sound)) as archive:
        members = {info.filename: bytearray(archive.read(info)) for info in archive.infolist()}
    (pickled,) = (content for name, content in members.items() if name.endswith("data.pkl"))
    pickled[place % len(pickled) : place % len(pickled) + len(change)] = change
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, bytes(content))
    return out.getvalue()


@settings(max_examples=300, deadline=None)
@given(place=st.integers(0, 1000), change=st.binary(min_size=1, max_size=6))
def test_a_damaged_pickle_is_refused_or_read(sound, place, change):
    """Whatever the program does, the machine returns views, or raises RefusalError."""
    with zipfile.ZipFile(io.BytesIO(repaired(sound, place, change))) as archive:
        (program,) = (archive.read(name) for name in archive.namelist() if name.endswith("data.pkl"))
    try:
        layouts = torch_pickle.read(program)
    except torch_pickle.RefusalError:
        layouts = {}
    assert all(isinstance(layout, torch_pickle.Layout) for layout in layouts.values())


@pytest.mark.long
@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_a_damaged_file_is_refused_or_read(sound, data, tmp_path_factory):
    content = bytearray(sound)
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(content) - 1))
        end = data.draw(st.integers(start, min(start + 40, len(content))))
        content[start:end] = data.draw(st.binary(max_size=40))
        content = content or bytearray(b"x")
    if data.draw(st.booleans()):
        place, change = data.draw(st.integers(0, 1000)), data.draw(st.binary(min_size=1, max_size=9))
        content = bytearray(repaired(sound, place, change))
    assert_read_or_refused(Path(tmp_path_factory.mktemp("damaged")) / "run.pt", bytes(content))
