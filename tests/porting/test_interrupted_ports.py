"""An interrupted port leaves nothing behind, and its progress is shown on a terminal only."""

import os
import signal
import subprocess
import sys

import pytest

import triglot
from triglot.shared.model.recipes import recipe

# Runs ``triglot port``, and sends itself a signal when half of the tensors are read.
INTERRUPTED = """
import os, sys
from triglot import cli
from triglot.shared.porting import port
from triglot.shared.porting.stream import Stream

class Interrupted(Stream):
    def with_checksum(self, name):
        if len(self.records) == len(self) // 2:
            os.kill(os.getpid(), SIGNAL)
        return super().with_checksum(name)

port.Stream = Interrupted
cli.main()
"""
TARGETS = {
    "neutral": ["model.npz"],
    "huggingface": ["model", "--target-dialect", "huggingface", "--shard-size", "10KB"],
}


@pytest.fixture
def source(make_checkpoint, tmp_path):
    triglot.save(make_checkpoint(recipe("bert-base-tiny")), tmp_path / "source.npz")
    (tmp_path / "target").mkdir()
    return tmp_path / "source.npz"


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("dialect", TARGETS)
def test_an_interrupted_port_leaves_nothing(dialect, sent, source, tmp_path):
    name, *options = TARGETS[dialect]
    script = INTERRUPTED.replace("SIGNAL", str(int(sent)))
    command = [sys.executable, "-c", script, "port", source, tmp_path / "target" / name, *options]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert result.returncode == (-sent if sent == signal.SIGKILL else 130)
    assert result.stderr == ("" if sent == signal.SIGKILL else "triglot: interrupted\n")
    left = os.listdir(tmp_path / "target")
    if sent == signal.SIGKILL and dialect == "huggingface":
        assert [entry[0] + entry[-5:] for entry in left] == ["..part"]  # hidden, and read by nobody
    elif sent != signal.SIGKILL or hasattr(os, "O_TMPFILE"):
        assert left == []


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs terminals")
@pytest.mark.parametrize("quiet", [True, False])
def test_progress_in_bytes_is_shown_on_a_terminal(quiet, source, tmp_path):
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "triglot", "port", source, tmp_path / "model.npz", *["--quiet"] * quiet]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "200"}
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=theirs, check=True, timeout=60, env=environment)
    os.close(theirs)
    shown = b""
    try:
        while part := os.read(ours, 4096):
            shown += part
    except OSError:  # Linux ends a terminal without writers with an error
        pass
    os.close(ours)
    size = sum(tensor.nbytes for tensor in triglot.load(source).tensors.values())
    total = f"/{size / 1000:.1f} kB"
    assert (total.encode() in shown, b"port " in shown) == ((False, False) if quiet else (True, True)), shown
