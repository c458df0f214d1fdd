"""The growing file of vectors: whatever interrupts a run, what counts is there, and nothing else."""

import fcntl
import json
import os
import resource
import signal
from io import BytesIO

import numpy as np
import pytest
from refusals import refusal, unchanged

from triglot.shared.errors import InputError, OutputError
from triglot.vector_file import VectorFile, unfinished

TEXTS = [f"text {number}" for number in range(10)]
VECTORS = np.random.default_rng(0).standard_normal((10, 3)).astype(np.float32)
SETTINGS = {"model": "abc", "prompt": "", "shape": (1, 2)}


@pytest.fixture
def path(workplace):
    return workplace / "out.npy"


def opened(path, *, resume=True, **settings):
    return VectorFile(path, 3, {**SETTINGS, **settings}, resume=resume)


def interrupted(path, rows=4):
    """Leave a run after so many rows."""
    with opened(path, resume=False) as file:
        file.append(TEXTS[:rows], VECTORS[:rows])


def finish(path):
    with opened(path) as file:
        texts = iter(TEXTS)
        file.skip(texts)
        rest = [*texts]
        file.append(rest, VECTORS[len(TEXTS) - len(rest) :])
        file.complete()


def assert_complete(path):
    np.testing.assert_array_equal(np.load(path), VECTORS)
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize("rows", [0, 4, 10])
def test_a_run_is_resumed_where_it_stopped(path, rows):
    if rows:
        interrupted(path, rows)
        assert not path.exists()
    finish(path)
    assert_complete(path)


def test_rows_that_do_not_count_are_written_again(path):
    """A process was killed after it wrote rows, and before it counted them."""
    interrupted(path)
    with path.with_name("out.npy.part").open("ab") as file:
        file.write(b"\x7f" * 31)
    finish(path)
    assert_complete(path)


def test_a_run_without_rows_leaves_nothing(path):
    with pytest.raises(KeyboardInterrupt), opened(path):
        raise KeyboardInterrupt
    assert not os.listdir(path.parent)


def test_no_texts_make_an_empty_file(path):
    with opened(path) as file:
        file.complete()
    assert np.load(path).shape == (0, 3)


def test_the_texts_have_to_be_the_same(path):
    interrupted(path)
    for texts in (["other", *TEXTS[1:]], TEXTS[:3], [TEXTS[0] + TEXTS[1], "", *TEXTS[2:]]):
        pattern = "first 4 texts are not those.*remove .*out.npy.part.json"
        with unchanged(path.parent), refusal(InputError, pattern), opened(path) as file:
            file.skip(iter(texts))


def test_the_settings_have_to_be_the_same(path):
    interrupted(path)
    with unchanged(path.parent):
        with refusal(InputError, "prompt is 'query', but the interrupted run has ''; use the same, or remove"):
            opened(path, prompt="query")
        with refusal(InputError, "dtype is 'float16', but the interrupted run has None"):
            opened(path, dtype="float16")


def test_an_interrupted_run_is_not_overwritten(path):
    interrupted(path)
    with unchanged(path.parent), refusal(OutputError, "left from an interrupted run; add --resume to continue, or"):
        opened(path, resume=False)


def test_a_complete_file_is_not_overwritten(path):
    finish(path)
    for resume in (True, False):
        with unchanged(path.parent), refusal(OutputError, "out.npy already exists; remove it, or choose another"):
            opened(path, resume=resume)


RECORDS = {
    "not JSON": "{",
    "other schema": json.dumps({"schema": "x"}),
    "no rows": json.dumps({"schema": "triglot.encode/1", "settings": {}}),
    "a list": "[]",
}


@pytest.mark.parametrize("kind", RECORDS)
def test_a_damaged_record(path, kind):
    interrupted(path)
    path.with_name("out.npy.part.json").write_text(RECORDS[kind])
    with unchanged(path.parent), refusal(InputError, "cannot resume from .*out.npy.part.json.*remove the file"):
        opened(path)


def test_a_shortened_part(path):
    interrupted(path)
    os.truncate(path.with_name("out.npy.part"), 150)
    with unchanged(path.parent), refusal(InputError, "out.npy.part is shorter than .* says; remove both"):
        opened(path)


def test_two_runs_at_once(path):
    with opened(path) as file:
        file.append(TEXTS[:4], VECTORS[:4])
        with refusal(OutputError, "another process writes it; wait"):
            opened(path)
        file.append(TEXTS[4:], VECTORS[4:])
        file.complete()
    assert_complete(path)


def test_a_run_that_another_process_completes(path, monkeypatch):
    """The file gets its name after this process opened it, and before this process locks it."""
    interrupted(path, 10)
    part, flock = path.with_name("out.npy.part"), fcntl.flock

    def complete_and_lock(*arguments):
        part.rename(path)
        flock(*arguments)

    content = part.read_bytes()
    monkeypatch.setattr(fcntl, "flock", complete_and_lock)
    with refusal(OutputError, "out.npy.part: another process has just completed it"):
        opened(path)
    assert path.read_bytes() == content


def test_a_run_that_another_process_extends(path, monkeypatch):
    """Another process appends and stops, after this one read the record and before it locks the file."""
    interrupted(path)
    flock = fcntl.flock

    def extend_and_lock(*arguments):
        monkeypatch.undo()
        with opened(path) as other:
            other.skip(iter(TEXTS[:4]))
            other.append(TEXTS[4:], VECTORS[4:])
        flock(*arguments)

    monkeypatch.setattr(fcntl, "flock", extend_and_lock)
    with refusal(OutputError, "out.npy.part: another process has just extended it; start again"):
        opened(path)
    finish(path)
    assert_complete(path)


def test_a_run_that_was_killed_as_it_finished(path, monkeypatch):
    """The file already had its name, and still its old one. Then the user moved it."""
    link = os.link

    def link_and_die(*arguments):
        link(*arguments)
        raise KeyboardInterrupt

    with opened(path) as file:
        file.append(TEXTS, VECTORS)
        monkeypatch.setattr(os, "link", link_and_die)
        with pytest.raises(KeyboardInterrupt):
            file.complete()
    monkeypatch.undo()
    part, record = unfinished(path)
    moved = path.rename(path.with_name("moved.npy"))
    for resume in (True, False):
        with unchanged(path.parent), refusal(OutputError, "out.npy.part: it is the same file as another one; remove"):
            opened(path, resume=resume)
        record.unlink(missing_ok=True)
    np.testing.assert_array_equal(np.load(moved), VECTORS)
    part.unlink()
    finish(path)


def test_a_file_that_no_run_left(path):
    part, _ = unfinished(path)
    for content in (b"a download", npy_of(VECTORS)):
        part.write_bytes(content)
        with unchanged(path.parent), refusal(OutputError, "out.npy.part: no unfinished run left it; move it away"):
            opened(path)


def npy_of(array):
    file = BytesIO()
    np.save(file, array)
    return file.getvalue()


@pytest.mark.parametrize("columns", [3, 384])
def test_a_run_that_was_killed_before_it_counted_vectors(path, columns):
    part, _ = unfinished(path)
    part.write_bytes(npy_of(np.empty((0, columns), np.float32)) + b"\x7f" * 31)
    finish(path)
    assert_complete(path)


def test_a_file_that_is_replaced_during_the_run(path):
    """The user removed the files of a run that still goes on, and started another one."""
    with opened(path) as file:
        file.append(TEXTS[:4], VECTORS[:4])
        for left in unfinished(path):
            left.unlink()
        with opened(path) as other:
            other.append(TEXTS, VECTORS)
            for write in (lambda: file.append(TEXTS[4:], VECTORS[4:]), file.complete):
                with unchanged(path.parent), refusal(OutputError, "out.npy.part was removed or replaced during"):
                    write()
            other.complete()
    assert_complete(path)


@pytest.mark.parametrize("has_links", [True, False])
def test_a_file_that_is_created_during_the_run(path, has_links, monkeypatch):
    def no_links(*_, **__):
        raise PermissionError

    if not has_links:
        monkeypatch.setattr(os, "link", no_links)
    with opened(path) as file:
        file.append(TEXTS, VECTORS)
        path.write_bytes(b"other")
        with refusal(OutputError, "out.npy was created during the run; move it away, and add --resume"):
            file.complete()
    assert path.read_bytes() == b"other"
    path.unlink()
    finish(path)
    assert_complete(path)


@pytest.mark.parametrize("is_counted", [True, False])
def test_ctrl_c_while_vectors_are_counted(path, is_counted, monkeypatch):
    """The run may report fewer vectors than are safe, but never more."""
    write_record = VectorFile._write_record

    def interrupt(*arguments):
        if is_counted:
            write_record(*arguments)
        raise KeyboardInterrupt

    with opened(path) as file:
        monkeypatch.setattr(VectorFile, "_write_record", interrupt)
        with pytest.raises(KeyboardInterrupt):
            file.append(TEXTS[:4], VECTORS[:4])
        monkeypatch.undo()
        assert file.rows == 0
    finish(path)
    assert_complete(path)


def test_the_longest_name(path):
    longest = path.with_name("x" * 245)
    finish(longest)
    assert_complete(longest)
    with refusal(OutputError, "its name has 256 bytes, expected at most 255; shorten it"):
        opened(path.with_name("x" * 246))


def test_a_folder_that_is_not_there(path):
    with refusal(OutputError, "cannot write .*; create it"):
        opened(path.parent / "none" / "out.npy")


def test_a_full_disk(path, monkeypatch):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    interrupted(path)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (180, limits[1]))  # after four of the ten rows
        with refusal(OutputError, "cannot write .*out.npy.part: File too large; free space, and add --resume"):
            finish(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    finish(path)
    assert_complete(path)
