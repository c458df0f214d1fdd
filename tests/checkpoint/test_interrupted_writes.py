"""Whatever happens to a process that writes a checkpoint, its target is the old file or the new one."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import triglot

KILLS = 100
ENVIRONMENT = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}


@pytest.mark.parametrize("way", ["unnamed", "named"])
def test_a_killed_writer_leaves_the_old_file_or_the_new_one(way, tmp_path):
    script = Path(__file__).parents[1] / "helpers" / "killing.py"
    command = [sys.executable, script, tmp_path, str(KILLS), way]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300, env=ENVIRONMENT)
    found = json.loads(result.stdout)
    assert found["bytes"] > 3e6
    assert sum(found["outcomes"].values()) == KILLS
    # All four occur, and nothing else: a file that is cut off, say, or empty.
    assert set(found["outcomes"]) == {"old -> old", "old -> new", "absent -> absent", "absent -> new"}
    if way == "unnamed" and hasattr(os, "O_TMPFILE"):
        # Only between getting its hidden name and its real one is there anything to leave behind: two system calls.
        assert found["leftovers"] <= KILLS // 5
    else:
        assert 0 < found["leftovers"] < KILLS, "hardly any kill hit the middle of a write"


# Runs where no file can have more than 1 MB: writes a checkpoint over a small one, from Python and on the command line.
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
LIMITED = """
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


def assert_refused_in_a_line(result, folder, reason):
    assert (result.returncode, result.stderr) == (0, "")
    lines = []
    for name in ("model.npz", "new.npz"):
        message = f"cannot write {folder / name}: {reason}; free space or choose another folder"
        lines += [message, f"2||triglot: {message}"]
    assert result.stdout.splitlines() == lines


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "full"
    path.mkdir()
    return path


def test_a_full_file_system_leaves_the_old_file(source, folder):
    """A real one, of 1 MB, where a user may mount one for himself. The next test is its stand-in everywhere else."""
    mount = 'mount -t tmpfs -o size=1m tmpfs "$1" && exec "$2" -c "$3" "$1" "$4"'
    user = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
    if not shutil.which("unshare"):
        pytest.skip("there is no unshare on this machine")
    trial = subprocess.run([*user, 'mount -t tmpfs tmpfs "$1"', "sh", folder], capture_output=True, check=False)
    if trial.returncode:
        pytest.skip(f"no file system can be mounted here: {trial.stderr.decode().strip()}")
    command = [*user, mount, "sh", folder, sys.executable, WRITE_TOO_MUCH, source]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert_refused_in_a_line(result, folder, "No space left on device")


def test_a_limit_of_sizes_leaves_the_old_file(source, folder):
    command = [sys.executable, "-c", LIMITED + WRITE_TOO_MUCH, folder, source]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert_refused_in_a_line(result, folder, "File too large")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full on this system")
def test_a_full_device_is_an_error_of_ours():
    message = "cannot write /dev/full: No space left on device; free space or choose another folder"
    with pytest.raises(triglot.OutputError, match=f"^{re.escape(message)}$"):
        triglot.save(triglot.initialize("bert-base-tiny"), "/dev/full")


def test_a_pipe_is_refused_before_anything_is_written():
    script = "import triglot; triglot.save(triglot.initialize('bert-base-tiny'), '/dev/stdout')"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert (result.returncode, result.stdout) == (1, "")
    message = "cannot write /dev/stdout: it is a pipe, and a checkpoint is no stream; give a file name"
    assert result.stderr.splitlines()[-1] == f"triglot.shared.errors.OutputError: {message}"
