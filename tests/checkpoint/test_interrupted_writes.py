"""Whatever interrupts a process that writes a checkpoint, its target is the old file or the new one."""

import json
import os
import shutil
import subprocess
import sys

import killing
import pytest

import triglot

KILLS = 100
ENVIRONMENT = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}


@pytest.mark.long(way="named")
@pytest.mark.parametrize("way", ["unnamed", "named"])
def test_a_killed_writer_leaves_the_old_file_or_the_new_one(way, tmp_path):
    command = [sys.executable, killing.__file__, tmp_path, str(KILLS), way]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300, env=ENVIRONMENT)
    report = json.loads(result.stdout)
    assert report["bytes"] > 3e6
    assert sum(report["outcomes"].values()) == KILLS
    # All four outcomes occur, and no others, such as a file that is cut off or empty.
    assert set(report["outcomes"]) == {"old -> old", "old -> new", "absent -> absent", "absent -> new"}
    if way == "unnamed" and hasattr(os, "O_TMPFILE"):
        # A file can be left behind only between getting its hidden name and its real one: two system calls.
        assert report["leftovers"] <= KILLS // 5
    else:
        assert 0 < report["leftovers"] < KILLS, "hardly any kill hit the middle of a write"


# Runs where files can have at most 1 MB. Writes a larger checkpoint over a small one, in Python and by the command.
WRITE_TOO_MUCH = """
import os, subprocess, sys
from pathlib import Path
import triglot

folder, source = Path(sys.argv[1]), sys.argv[2]
target = folder / "model.npz"
triglot.save(triglot.initialize("bert-base-tiny"), target)
old = target.read_bytes()
large = triglot.load(source)
for path in (target, folder / "new.npz"):
    try:
        triglot.save(large, path)
    except triglot.OutputError as error:
        print(error)
    result = subprocess.run([sys.executable, "-m", "triglot", "port", source, path], capture_output=True, text=True)
    print(result.returncode, result.stdout, result.stderr, sep="|", end="")
    assert os.listdir(folder) == ["model.npz"], os.listdir(folder)
    assert target.read_bytes() == old
"""
LIMIT_SIZES = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))
"""


@pytest.fixture
def source(tmp_path):
    """A checkpoint of 2 MB."""
    path = tmp_path / "source.npz"
    config = triglot.ModelConfig(**{**triglot.recipes()["bert-base-tiny"].__dict__, "source_vocabulary": 20_000})
    triglot.save(triglot.initialize(config), path)
    assert path.stat().st_size > 1.5 * 2**20
    return path


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "full"
    path.mkdir()
    return path


def assert_refused_in_one_line(command, folder, problem):
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (result.returncode, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[1::2] == [f"2||triglot: {line}" for line in lines[::2]]
    for line, name in zip(lines[::2], ("model.npz", "new.npz"), strict=True):
        assert line.startswith(f"cannot write {folder / name}: {problem}; free space")


def test_a_full_file_system_leaves_the_old_file(source, folder):
    """On a file system of 1 MB, where users may mount one. The next test replaces it elsewhere."""
    mount = 'mount -t tmpfs -o size=1m tmpfs "$1" && exec "$2" -c "$3" "$1" "$4"'
    user = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
    if not shutil.which("unshare"):
        pytest.skip("unshare is not installed")
    trial = subprocess.run([*user, 'mount -t tmpfs tmpfs "$1"', "sh", folder], capture_output=True, check=False)
    if trial.returncode:
        pytest.skip(f"users cannot mount a file system here: {trial.stderr.decode().strip()}")
    command = [*user, mount, "sh", folder, sys.executable, WRITE_TOO_MUCH, source]
    assert_refused_in_one_line(command, folder, "No space left on device")


@pytest.mark.long
def test_a_size_limit_leaves_the_old_file(source, folder):
    command = [sys.executable, "-c", LIMIT_SIZES + WRITE_TOO_MUCH, folder, source]
    assert_refused_in_one_line(command, folder, "File too large")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_device_is_an_output_error():
    with pytest.raises(triglot.OutputError, match=r"^cannot write /dev/full: No space left on device; free space"):
        triglot.save(triglot.initialize("bert-base-tiny"), "/dev/full")


def test_a_pipe_is_refused_before_anything_is_written():
    script = "import triglot; triglot.save(triglot.initialize('bert-base-tiny'), '/dev/stdout')"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert (result.returncode, result.stdout) == (1, "")
    assert "OutputError: cannot write /dev/stdout: a checkpoint cannot be written to a pipe" in result.stderr
