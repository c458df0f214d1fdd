"""Files appear whole or not at all, and a target that cannot be written is refused before the work."""

import errno
import os
import re
import stat

import pytest

from triglot.shared import files
from triglot.shared.errors import OutputError

NO_NAME = getattr(os, "O_TMPFILE", None)


@pytest.fixture(autouse=True, params=["unnamed", "named"])
def way(request, monkeypatch):
    """How the file is called before it is whole: on Linux not at all, elsewhere by a hidden name."""
    if request.param == "named":
        monkeypatch.delattr(os, "O_TMPFILE")
    return request.param


def test_a_file_on_the_way_has_no_name_or_a_hidden_one(way, tmp_path):
    with files.writing(tmp_path / ("ü" * 120)) as file:  # nearly as long as a name can be
        file.write(b"half")
        file.flush()
        on_the_way = os.listdir(tmp_path)
    if way == "unnamed":
        assert on_the_way == []
    else:
        (hidden,) = on_the_way
        assert re.fullmatch(r"\.ü{100}\.[0-9a-f]{8}\.part", hidden)
    assert os.listdir(tmp_path) == ["ü" * 120]


def test_a_file_system_without_unnamed_files_gets_named_ones(tmp_path, monkeypatch):
    """As some network file systems and containers are: they refuse the file, or its way to a name."""
    for call in ("open", "link"):
        real = getattr(os, call)

        def refuse(path, *arguments, real=real, **options):
            if str(path).startswith("/proc/") or (arguments and arguments[0] & getattr(os, "O_TMPFILE", 0) == NO_NAME):
                raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
            return real(path, *arguments, **options)

        with monkeypatch.context() as patch:
            patch.setattr(os, call, refuse)
            with files.writing(tmp_path / call) as file:
                file.write(b"content")
                assert len(os.listdir(tmp_path)) == 1
        assert (tmp_path / call).read_bytes() == b"content"
        (tmp_path / call).unlink()


def test_a_file_appears_only_when_all_of_it_is_written(tmp_path):
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


@pytest.mark.parametrize("error", [RuntimeError("stop"), KeyboardInterrupt("stop")])
def test_an_interrupted_write_leaves_the_old_file_or_none(error, tmp_path):
    target = tmp_path / "file"
    with pytest.raises(type(error), match="stop"):
        write_and_raise(target, error)
    assert os.listdir(tmp_path) == []
    target.write_bytes(b"old")
    with pytest.raises(type(error), match="stop"):
        write_and_raise(target, error)
    assert target.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_full_disk_leaves_the_old_file(tmp_path):
    target = tmp_path / "file"
    target.write_bytes(b"old")
    message = f"^cannot write {re.escape(str(target))}: No space left on device; free space or choose another folder$"
    with pytest.raises(OutputError, match=message):
        write_and_raise(target, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    assert target.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_folder_that_is_none_cannot_be_written_to(tmp_path):
    (tmp_path / "file").write_bytes(b"old")
    missing, below_file = tmp_path / "missing" / "file", tmp_path / "file" / "file"
    message = f"^cannot write {re.escape(str(missing))}: No such file or directory; choose a writable folder$"
    with pytest.raises(OutputError, match=message), files.writing(missing):
        pass
    message = f"^cannot write {re.escape(str(below_file))}: Not a directory; choose a writable folder$"
    with pytest.raises(OutputError, match=message), files.writing(below_file):
        pass
    assert (tmp_path / "file").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_folder_is_not_replaced_by_a_file(tmp_path):
    target = tmp_path / "folder"
    target.mkdir()
    message = f"^cannot write {re.escape(str(target))}: Is a directory"
    with pytest.raises(OutputError, match=message), files.writing(target) as file:
        file.write(b"content")
    assert target.is_dir()
    assert os.listdir(tmp_path) == ["folder"]


def test_the_content_is_synced_before_the_file_gets_its_name(tmp_path, monkeypatch):
    """Only a power failure would show the difference, so the calls are watched."""
    steps = []
    fsync, replace = os.fsync, os.replace

    def watched_fsync(descriptor):
        status = os.fstat(descriptor)
        steps.append("folder" if stat.S_ISDIR(status.st_mode) else f"{status.st_size} bytes")
        fsync(descriptor)

    def watched_replace(source, target):
        steps.append("name")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(os, "replace", watched_replace)
    with files.writing(tmp_path / "file") as file:
        file.write(b"content")
    assert steps == ["7 bytes", "name", "folder"]


def test_no_descriptor_stays_open(tmp_path):
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


def test_a_good_target_is_left_as_it_is(tmp_path):
    files.check_target(tmp_path / "new")
    assert os.listdir(tmp_path) == []
    (tmp_path / "old").write_bytes(b"old")
    files.check_target(tmp_path / "old")
    assert (tmp_path / "old").read_bytes() == b"old"


def test_a_bad_target_is_refused_before_any_work(tmp_path):
    message = f"^cannot write {re.escape(str(tmp_path))}: it is a folder; give the name of a file$"
    with pytest.raises(OutputError, match=message):
        files.check_target(tmp_path)
    folder = tmp_path / "missing"
    message = f"^cannot write {re.escape(str(folder / 'file'))}: the folder {re.escape(str(folder))} does not exist; "
    with pytest.raises(OutputError, match=message):
        files.check_target(folder / "file")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OutputError, match=r"^cannot write .*/file/below: "):
        files.check_target(tmp_path / "file" / "below")


def test_a_folder_without_permission_is_refused_before_any_work(tmp_path, monkeypatch):
    # Root may write everywhere, and tests run as root in containers: so the answer of the system is given.
    monkeypatch.setattr(os, "access", lambda path, mode: (path, mode) != (tmp_path, os.W_OK))
    message = f"cannot write {tmp_path / 'file'}: the folder {tmp_path} is not writable; choose another one"
    with pytest.raises(OutputError, match=f"^{re.escape(message)}$"):
        files.check_target(tmp_path / "file")
