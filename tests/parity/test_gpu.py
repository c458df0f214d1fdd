"""Tests that need a GPU: ``make gpu``. The code around them is tested on the CPU in ``tests/bench/test_device.py``."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

import triglot
from triglot import impls
from triglot.bench.machine import roofline
from triglot.bench.run import arms
from triglot.bench.run.cases import Settings
from triglot.shared.arrays import HALVES
from triglot.shared.choices import DTYPES
from triglot.shared.errors import FrameworkError

pytestmark = pytest.mark.gpu

SHORT = ("--batch", "4", "--length", "16", "--seconds", "0.2", "--rounds", "3")


@pytest.fixture
def on_cuda(request, framework, make_checkpoint):
    """Return the name of a framework that finds a GPU."""
    if not request.config.getoption("--gpu"):
        pytest.skip("needs --gpu")
    try:
        impls.build(framework, make_checkpoint("bert-base-tiny"), device="cuda")
    except FrameworkError as error:
        if "no cuda device was found" not in str(error):
            raise
        pytest.skip(f"{framework} finds no GPU")
    return framework


@pytest.mark.parametrize("mode", impls.MODES)
def test_no_huge_pages_are_asked_for(on_cuda, mode, make_checkpoint, monkeypatch):
    backend = importlib.import_module(f"triglot.impls.{impls.PACKAGES[on_cuda]}.backend")
    monkeypatch.setattr(backend, "ask_for_huge_pages", lambda: pytest.fail("they are for models on a CPU"))
    assert impls.build(on_cuda, make_checkpoint("bert-base-tiny"), device="cuda", mode=mode)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", impls.MODES)
def test_a_gpu_computes_the_same(on_cuda, mode, dtype, make_checkpoint):
    report = triglot.check(make_checkpoint("bert-base-tiny"), [on_cuda], device="cuda", mode=mode, dtype=dtype)
    assert report.verdict == "pass", [row for row in report.rows if row.verdict != "pass"]


@pytest.mark.parametrize(
    ("model", "workload", "dtype"),
    [
        *(("bert-base-tiny", "forward", dtype) for dtype in DTYPES),
        ("bert-base-tiny", "forward+backward", "float32"),
        ("bert-base-tiny", "training", "float32"),
        ("translation-tiny", "generation", "float32"),
    ],
)
def test_a_gpu_is_timed(on_cuda, model, workload, dtype, workplace):
    asked = ["bench", model, "--device", "cuda", "--framework", on_cuda, "--workload", workload, "--dtype", dtype]
    asked += SHORT
    command = [sys.executable, "-P", "-m", "triglot", *asked, "--json", "bench.json", "--quiet"]
    assert subprocess.run(command, check=False).returncode == 0
    found = json.loads(Path("bench.json").read_text())
    config = triglot.recipes()[model]
    timed = [case for case in found["cases"] if case["status"] == "ok"]
    assert {case["arm"] for case in timed} >= {
        name
        for name, arm in arms.ARMS.items()
        if arm.framework == on_cuda and not arm.why_unsupported(config, workload, dtype, "cuda")
    }
    for case in timed:
        assert case["peak_device_mb"] > 0
        if on_cuda != "jax":  # JAX has no events
            assert 0 < case["device_ms"]["p50"] < 1.05 * case["latency_ms"]["p50"]


@pytest.mark.parametrize("dtype", ["float32", *HALVES])
def test_the_roofline_of_a_gpu_is_measured(on_cuda, dtype):
    found = roofline.measure([on_cuda], dtype, "cuda", 1, Settings())
    assert (found.gflops or 0) > 1000, "more than any CPU"
    assert (found.copy_gb_per_s or 0) > 100
