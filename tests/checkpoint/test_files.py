"""Files are written completely or not at all, and impossible targets are refused before any work is done."""

import errno
import os
import re
import stat
from pathlib import Path

import pytest

from triglot.shared import files
from triglot.shared.errors import OutputError

O_TMPFILE = getattr(os, "O_TMPFILE", None)


@pytest.fixture(autouse=True, params=["unnamed", "named"])
def way(request, monkeypatch):
    """Unfinished files have no name on Linux, and a hidden name elsewhere."""
    if request.param == "named":
        monkeypatch.delattr(os, "O_TMPFILE")
    return request.param


def test_an_unfinished_file_has_no_name_or_a_hidden_one(way, tmp_path):
    with files.writing(tmp_path / ("ü" * 120)) as file:  # nearly the longest possible name
        file.write(b"half")
        file.flush()
        unfinished = os.listdir(tmp_path)
    if way == "unnamed":
        assert unfinished == []
    else:
        (hidden,) = unfinished
        assert re.fullmatch(r"\.ü{100}\.[0-9a-f]{8}\.part", hidden)
    assert os.listdir(tmp_path) == ["ü" * 120]


@pytest.mark.parametrize("call", ["open", "link"])
def test_file_systems_without_unnamed_files_get_named_ones(call, tmp_path, monkeypatch):
    """Some network file systems and containers refuse to create an unnamed file, or to give it a name."""
    original = getattr(os, call)

    def refuse(path, *arguments, **options):
        if str(path).startswith("/proc/") or (arguments and arguments[0] & getattr(os, "O_TMPFILE", 0) == O_TMPFILE):
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return original(path, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, refuse)
        with files.writing(tmp_path / "file") as file:
            file.write(b"content")
            assert len(os.listdir(tmp_path)) == 1
    assert (tmp_path / "file").read_bytes() == b"content"


def test_a_file_appears_only_when_it_is_complete(tmp_path):
    target = tmp_path / "file"
    with files.writing(target) as file:
        file.write(b"new")
        assert not target.exists()
    assert target.read_bytes() == b"new"
    with files.writing(target) as file:
        file.write(b"newer")
        assert target.read_bytes() == b"new"
    assert target.read_bytes() == b"newer"
    assert os.listdir(tmp_path) == ["file"]


def write_and_raise(target, error):
    with files.writing(target) as file:
        file.write(b"half")
        raise error


@pytest.mark.parametrize(
    ("error", "raised", "words"),
    [
        (RuntimeError("stop"), RuntimeError, "stop"),
        (KeyboardInterrupt("stop"), KeyboardInterrupt, "stop"),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), OutputError, "cannot write .*No space left.*free space"),
    ],
)
def test_an_interrupted_write_leaves_the_old_file_or_none(error, raised, words, tmp_path):
    target = tmp_path / "file"
    with pytest.raises(raised, match=words):
        write_and_raise(target, error)
    assert os.listdir(tmp_path) == []
    target.write_bytes(b"old")
    with pytest.raises(raised, match=words):
        write_and_raise(target, error)
    assert target.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize(
    ("target", "problem"),
    [("missing/file", "No such file or directory"), ("file/file", "Not a directory"), ("folder", "Is a directory")],
)
def test_an_impossible_target_is_refused_and_nothing_changes(target, problem, tmp_path):
    (tmp_path / "file").write_bytes(b"old")
    (tmp_path / "folder").mkdir()
    refusal = pytest.raises(OutputError, match=rf"^cannot write .*/{target}: {problem}")
    with refusal, files.writing(tmp_path / target) as file:
        file.write(b"content")
    assert (tmp_path / "file").read_bytes() == b"old"
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]
    assert os.listdir(tmp_path / "folder") == []


def test_the_content_is_synced_before_the_file_gets_its_name(tmp_path, monkeypatch):
    """Only a power failure would show the difference, so the test records the calls."""
    steps = []
    fsync, replace = os.fsync, os.replace

    def recording_fsync(descriptor):
        status = os.fstat(descriptor)
        steps.append("folder" if stat.S_ISDIR(status.st_mode) else f"{status.st_size} bytes")
        fsync(descriptor)

    def recording_replace(source, target):
        steps.append("name")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", recording_fsync)
    monkeypatch.setattr(os, "replace", recording_replace)
    with files.writing(tmp_path / "file") as file:
        file.write(b"content")
    assert steps == ["7 bytes", "name", "folder"]


def test_all_descriptors_are_closed(tmp_path):
    def next_descriptor():
        descriptor = os.open(os.devnull, os.O_RDONLY)
        os.close(descriptor)
        return descriptor

    before = next_descriptor()
    with files.writing(tmp_path / "file") as file:
        file.write(b"content")
    with pytest.raises(RuntimeError, match="stop"):
        write_and_raise(tmp_path / "file", RuntimeError("stop"))
    assert next_descriptor() == before


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600), (0, 0o666)])
def test_permissions_follow_the_umask(umask, mode, tmp_path):
    old = os.umask(umask)
    try:
        with files.writing(tmp_path / "file") as file:
            file.write(b"content")
        assert os.umask(umask) == umask, "the umask was not restored"
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == mode


def test_check_writable_does_not_change_a_good_target(tmp_path):
    files.check_writable(tmp_path / "new")
    (tmp_path / "old").write_bytes(b"old")
    files.check_writable(tmp_path / "old")
    assert (tmp_path / "old").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["old"]


def test_check_writable_follows_a_link(tmp_path):
    """The file that a link names is replaced, so its folder counts, and not that of the link."""
    (tmp_path / "to_proc").symlink_to("/proc/report.json")
    with pytest.raises(OutputError, match="no file can be created in the folder /proc"):
        files.check_writable(tmp_path / "to_proc")
    with (tmp_path / "open").open("wb") as file:
        files.check_writable(Path(f"/proc/self/fd/{file.fileno()}"))


def test_check_writable_refuses_impossible_targets(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"")
    closed = tmp_path / "closed"
    closed.mkdir()
    # Root may write everywhere, and tests run as root in containers, so the system's answer is replaced.
    monkeypatch.setattr(os, "access", lambda path, mode: (path, mode) != (closed, os.W_OK))
    for target, problem in (
        (tmp_path, "it is a folder; name a file"),
        (tmp_path / "missing" / "file", "the folder .*missing does not exist; create it"),
        (tmp_path / "file" / "below", "file is not a folder"),
        (tmp_path / ("n" * 300), "its name has 300 bytes, expected at most 255"),
        (tmp_path / "\udcff\ud800", "no file can have that name"),
        (closed / "file", "the folder .*closed is not writable"),
        (Path("/proc/report.json"), "no file can be created in the folder /proc"),
    ):
        with pytest.raises(OutputError, match=f"^cannot write .*: .*{problem}"):
            files.check_writable(target)
