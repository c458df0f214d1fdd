"""A framework that crashes, hangs or cannot be imported becomes a row of the report, and the others finish."""

import contextlib
import json
import os
import platform
import re
import signal
import subprocess
import sys
import sysconfig
import time
import venv
from importlib import metadata
from pathlib import Path

import pytest

import triglot
from triglot import impls
from triglot.parity import pool as pools
from triglot.shared.worker import Worker

# What happens inside the worker of one framework when it builds its model.
MISHAPS = {
    "killed": (
        "import os, signal, sys; print('a warning about something else', file=sys.stderr, flush=True); "
        "os.kill(os.getpid(), signal.SIGKILL)"
    ),
    "segfault": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
    "exit": "import sys; print('the disk is on fire', file=sys.stderr); sys.exit(3)",
    "hang": "import time; time.sleep(600)",
    "hanging child": (
        "import pathlib, subprocess; child = subprocess.Popen(['sleep', '600']); "
        "pathlib.Path(LOG).write_text(str(child.pid)); child.wait()"
    ),
    "garbage": "print('Hello from a library that prints', flush=True); import time; time.sleep(600)",
}
REASONS = {
    "killed": "died by signal SIGKILL, which often means out of memory",
    "segfault": "died by signal SIGSEGV",
    "exit": "ended with exit code 3: the disk is on fire",
    "hang": "no answer within 1 s; raise the time limit, or find out why it hangs",
    "hanging child": "no answer within 1 s; raise the time limit, or find out why it hangs",
    "garbage": "no answer within 1 s; raise the time limit, or find out why it hangs",
}


@pytest.fixture
def mishap(monkeypatch):
    """Return a function that makes code run inside the worker of one framework when it builds its model."""

    def plant(framework, code):
        start = pools.Worker.__init__

        def replaced(self, command, log, threads, time_limit):
            if log.stem == framework:
                patch = (
                    "import triglot.impls as impls, triglot.parity.worker as worker\n"
                    f"def build(*arguments, **options):\n exec({code!r})\n"
                    "worker.build = build\nworker.main()\n"
                )
                command = [sys.executable, "-P", "-c", patch]
                time_limit = 1.0 if "sleep" in code else time_limit
            start(self, command, log, threads, time_limit)

        monkeypatch.setattr(pools.Worker, "__init__", replaced)

    return plant


def test_jax_leaves_memory_of_a_gpu_to_the_other_workers(tmp_path, monkeypatch):
    """By default it would reserve three quarters of it, and a framework beside it ran out of memory."""
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "true")
    code = "import json, os; input(); print(json.dumps({'set': os.environ['XLA_PYTHON_CLIENT_PREALLOCATE']}))"
    worker = Worker((sys.executable, "-c", code), tmp_path / "log", 1, 60)
    worker.send("any", {})
    assert worker.receive() == {"set": "false"}
    worker.close()


@pytest.mark.long(kind="hanging child")
@pytest.mark.long(kind="segfault")
@pytest.mark.long(kind="exit")
@pytest.mark.long(kind="hang")
@pytest.mark.parametrize("kind", MISHAPS)
def test_a_mishap_becomes_a_row_with_its_reason(kind, mishap, make_checkpoint, tmp_path):
    grandchild = tmp_path / "pid"
    mishap("paddle", MISHAPS[kind].replace("LOG", repr(str(grandchild))))
    report = triglot.check(make_checkpoint("bert-base-tiny"), ["torch", "paddle"], checks=["forward"], threads=1)
    assert report.verdict == "incomplete"
    assert report.exit_code == 2
    (row,) = [row for row in report.rows if row.framework == "paddle"]
    assert (row.check, row.verdict, row.error) == ("worker", "error", None)
    assert row.reason == REASONS[kind]
    others = [row for row in report.rows if row.framework == "torch"]
    assert len(others) > 200
    assert {row.verdict for row in others} == {"pass"}
    assert not children()
    if grandchild.exists():
        assert not alive(int(grandchild.read_text()))


def test_a_worker_that_prints_at_startup_is_a_row(mishap, make_checkpoint, tmp_path, monkeypatch):
    """For example, a site hook that prints when Python starts: its output is read as the first answer."""
    (tmp_path / "sitecustomize.py").write_text("print('Welcome to the cluster', flush=True)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    report = triglot.check(make_checkpoint("bert-base-tiny"), ["torch"], threads=1)
    assert report.verdict == "error"
    assert report.rows[0].reason == "printed 'Welcome to the cluster' instead of an answer"


def test_an_import_failure_names_the_exception(mishap, make_checkpoint):
    mishap("jax", "raise ImportError('libjax.so: cannot open shared object file')")
    report = triglot.check(make_checkpoint("bert-base-tiny"), ["jax"], threads=1)
    assert report.verdict == "error"
    assert report.rows[0].reason == "ImportError: libjax.so: cannot open shared object file"


@pytest.mark.parametrize("isolate", [False, True])
def test_a_run_without_any_framework_left_ends(isolate, make_checkpoint):
    """Computing the truth for nobody would take long."""
    left: list[int] = []
    report = triglot.check(
        make_checkpoint("bert-base-tiny"),
        ["paddle"],
        dtype="float16",
        isolate=isolate,
        threads=1,
        progress=lambda done, total, _: left.append(total - done),
    )
    assert report.verdict == "error"
    assert len(left) == 2
    assert left[-1] == 0


def test_output_of_a_library_is_not_an_answer(mishap, make_checkpoint):
    """Answers have their own channel, and standard output inside the worker goes to its log."""
    mishap("torch", "print('{\"error\": \"not an answer\"}'); raise ValueError('the real reason')")
    report = triglot.check(make_checkpoint("bert-base-tiny"), ["torch"], threads=1)
    assert report.rows[0].reason == "ValueError: the real reason"


# Out of memory in NumPy, in PyTorch, or at the limit of the process.
MEMORY = {
    "numpy": ("import numpy; numpy.ones(1 << 50)", "MemoryError: Unable to allocate "),
    "torch": ("import torch; torch.ones(1 << 50)", "RuntimeError: [enforce fail at alloc_cpu.cpp"),
    "limit": (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 32, 1 << 32)); bytearray(1 << 33)",
        "MemoryError",
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("kind", MEMORY)
def test_running_out_of_memory_is_a_row_and_the_others_finish(kind, mishap, make_checkpoint):
    code, reason = MEMORY[kind]
    mishap("torch", code)
    report = triglot.check(make_checkpoint("bert-base-tiny"), ["torch", "paddle"], checks=["forward"], threads=1)
    assert report.verdict == "incomplete"
    (row,) = [row for row in report.rows if row.framework == "torch"]
    assert (row.check, row.verdict) == ("worker", "error")
    assert row.reason.startswith(reason)
    assert {row.verdict for row in report.rows if row.framework == "paddle"} == {"pass"}
    assert not children()


@pytest.fixture
def other_python(tmp_path):
    """Return an interpreter of another environment that sees our packages, and the file that it writes at startup."""
    venv.create(tmp_path / "other", symlinks=True)
    (packages,) = (tmp_path / "other").glob("lib/python*/site-packages")
    own = sysconfig.get_path("purelib")
    mark = tmp_path / "started"
    leave_mark = f"import pathlib, sys; pathlib.Path({str(mark)!r}).write_text(sys.prefix)"
    (packages / "own.pth").write_text(f"import site; site.addsitedir({own!r})\n{leave_mark}\n")
    return tmp_path / "other" / "bin" / "python", mark


def test_a_framework_runs_in_another_interpreter(other_python, make_checkpoint, monkeypatch):
    """Even a framework that is not installed in this one."""
    python, mark = other_python
    monkeypatch.setattr(impls, "installed", lambda: ("paddle",))
    report = triglot.check(make_checkpoint("bert-base-tiny"), checks=["forward"], pythons={"torch": python}, threads=1)
    assert report.verdict == "pass"
    assert report.frameworks == ("torch", "paddle")
    assert mark.read_text() == str(python.parent.parent)
    workers = report.environment["workers"]
    assert workers.keys() == {"torch", "paddle"}
    assert workers["torch"]["python"] == platform.python_version()
    assert workers["torch"]["packages"]["triglot"] == metadata.version("triglot")


def test_an_interpreter_without_triglot_is_a_row(tmp_path, make_checkpoint):
    venv.create(tmp_path / "bare", symlinks=True)
    python = tmp_path / "bare" / "bin" / "python"
    report = triglot.check(make_checkpoint("bert-base-tiny"), ["torch"], pythons={"torch": python}, threads=1)
    assert report.verdict == "error"
    assert report.rows[0].reason == "ended with exit code 1: its interpreter has no Triglot; install it there"


def test_an_interpreter_with_another_triglot_is_a_row(other_python, make_checkpoint, monkeypatch):
    """Two versions may differ for reasons that have nothing to do with the framework."""
    here = pools.environment()
    here["packages"] = {**here["packages"], "triglot": "9.9"}
    monkeypatch.setattr(pools, "environment", lambda: here)
    ours = metadata.version("triglot")
    report = triglot.check(make_checkpoint("bert-base-tiny"), ["torch"], pythons={"torch": other_python[0]}, threads=1)
    assert f"has Triglot {ours}, this one 9.9" in report.rows[0].reason


def test_a_program_that_is_not_an_interpreter_is_refused_or_a_row(tmp_path, make_checkpoint):
    checkpoint = make_checkpoint("bert-base-tiny")
    broken = tmp_path / "python"
    broken.write_bytes(b"\x7fELF and nothing else")
    broken.chmod(0o755)
    message = rf"^cannot start {re.escape(str(broken))}: .*; give a Python interpreter$"
    with pytest.raises(triglot.FrameworkError, match=message):
        triglot.check(checkpoint, ["torch"], pythons={"torch": broken})
    report = triglot.check(checkpoint, ["torch"], pythons={"torch": "/bin/true"}, threads=1)
    assert report.rows[0].reason == "ended with exit code 0"
    assert not children()


def test_divergence_beats_incomplete(mishap, make_checkpoint, monkeypatch):
    from triglot.parity import checks

    expected = checks.masks.all_masks
    monkeypatch.setattr(
        checks.masks, "all_masks", lambda valid: {name: ~mask for name, mask in expected(valid).items()}
    )
    mishap("paddle", MISHAPS["killed"])
    report = triglot.check(make_checkpoint("bert-base-tiny"), ["torch", "paddle"], checks=["masks"], threads=1)
    assert report.verdict == "diverged"
    assert report.exit_code == 1


def test_a_worker_ends_when_the_harness_is_gone(tmp_path):
    """Even if the harness was killed and could not clean up: the worker notices that its input has ended."""
    worker = subprocess.Popen(
        [sys.executable, "-P", "-m", "triglot.parity.worker"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    assert worker.stdin is not None
    start = {"kind": "start", "framework": "torch", "device": "cpu", "dtype": "float32", "mode": "eager"}
    worker.stdin.write(json.dumps(start).encode() + b"\n")
    worker.stdin.close()
    assert worker.wait(timeout=60) == 0


def test_an_interrupt_leaves_no_process_and_no_file(tmp_path):
    """Ctrl-C in the middle of a run ends it with exit code 130 and one line, and leaves nothing behind."""
    target = tmp_path / "report.json"
    environment = {**os.environ, "TMPDIR": str(tmp_path / "scratch")}
    (tmp_path / "scratch").mkdir()
    command = [sys.executable, "-m", "triglot", "parity", "bert-base-tiny", "--json", str(target)]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while not children(process.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    workers = children(process.pid)
    assert workers
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    # A shell shows 130 for both. Python dies by the signal itself if the interrupt passed through an exec.
    assert process.returncode in (130, -signal.SIGINT)
    assert errors.decode() == "triglot: interrupted\n"
    deadline = time.monotonic() + 10  # a worker that is still starting ends when it reads its closed input
    while any(alive(pid) for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(alive(pid) for pid in workers)
    assert not target.exists()
    assert list((tmp_path / "scratch").iterdir()) == []


def children(parent=None):
    """Return the running child processes of ``parent``, by default of this process."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it may end while we look
            state, ppid = status.read_text().rpartition(")")[2].split()[:2]
            command = (status.parent / "cmdline").read_text()
            if int(ppid) == (parent or os.getpid()) and state != "Z" and "worker" in command:
                found.append(int(status.parent.name))
    return found


def alive(pid):
    """Return whether a process runs; a zombie does not."""
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
