"""``triglot bench`` on a GPU: its own clock, and what happens without a GPU. Stand-ins replace the GPU here."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from triglot import impls
from triglot.bench.machine import gpu
from triglot.bench.machine.roofline import FrameworkSpeed, Roofline
from triglot.bench.run import sweep, worker
from triglot.shared.errors import BenchError


def test_a_device_is_timed_by_its_own_clock():
    """Two events enclose the call, without the wait after it. A CPU and JAX have no such clock."""
    happened = []

    class Event:
        def __init__(self, *, enable_timing):
            assert enable_timing

        def record(self):
            happened.append(self)

        def elapsed_time(self, end):
            assert happened[-4:] == [self, "call", end, "wait"]
            return 0.25

    prepared: Any = SimpleNamespace(call=lambda: happened.append("call"), wait=lambda _: happened.append("wait"))
    cuda = SimpleNamespace(Event=Event)
    loaded = {"torch": SimpleNamespace(cuda=cuda), "paddle": SimpleNamespace(device=SimpleNamespace(cuda=cuda))}
    for framework in ("torch", "paddle"):
        clock = gpu.clock(framework, "cuda", loaded)
        answer = worker.sample(prepared, clock, 0, 3)
        assert len(answer["samples_ms"]) == 3
        assert answer["device_ms"] == [0.25] * 3
        assert gpu.clock(framework, "cpu", loaded) is None
    assert gpu.clock("jax", "cuda", loaded) is None
    happened.clear()
    assert worker.sample(prepared, None, 0, 2)["device_ms"] == []
    assert happened == ["call", "wait"] * 2


def test_a_missing_device_is_refused_before_it_is_used():
    """The message is the same for every framework."""

    def no_devices(_):
        raise RuntimeError("Unknown backend cuda")

    there = {
        "torch": SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: True)),
        "paddle": SimpleNamespace(device=SimpleNamespace(cuda=SimpleNamespace(device_count=lambda: 1))),
        "jax": SimpleNamespace(devices=lambda name: [name]),
    }
    missing = {
        "torch": SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False)),
        "paddle": SimpleNamespace(device=SimpleNamespace(cuda=SimpleNamespace(device_count=lambda: 0))),
        "jax": SimpleNamespace(devices=no_devices),
    }
    for name in impls.FRAMEWORKS:
        gpu.check_device(name, "cpu", missing)
        gpu.check_device(name, "cuda", there)
        with pytest.raises(gpu.DeviceMissingError, match=f"{name} finds no cuda device.*--device cpu"):
            gpu.check_device(name, "cuda", missing)


@pytest.mark.long
def test_a_machine_without_a_gpu_says_so_at_once(workplace, command, monkeypatch):
    """Only one process for each framework is started, and none for each arm."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(sweep, "WORKER", ("false",))
    code, out, err = command("bench", "bert-base-tiny", "--device", "cuda", "--json", "bench.json")
    names = ", ".join(impls.installed())
    assert (code, out) == (2, "")
    assert err.startswith(f"triglot: {names} find no cuda device")
    assert err.count("\n") == 1
    assert not Path("bench.json").exists()


def test_only_a_device_that_no_framework_finds_is_refused():
    def measured(**frameworks):
        return Roofline("float32", "cuda", 1, None, None, None, frameworks)

    failed, missing = FrameworkSpeed(failure="out of memory"), FrameworkSpeed(failure="no device", missing=True)
    measured(torch=failed, jax=missing).check_device_found()
    measured().check_device_found()
    with pytest.raises(BenchError, match=r"torch, jax find no cuda device.*--device cpu"):
        measured(torch=missing, jax=missing).check_device_found()
