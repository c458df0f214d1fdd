"""Fixtures for all tests. A framework is a parameter of a test, never a loop; a missing framework is a failure."""

import gc
import os
import signal
import subprocess
import sys
from dataclasses import replace
from functools import partial

# Test processes run side by side, one per core. Frameworks that use all cores would wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("NPROC", "1")

# Tests start hundreds of processes, which would all compile Triglot's modules again if they could not keep the result.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

import numpy as np
import pytest
from fake_arms import FAKE_ARMS, WORKER

import triglot
from triglot import cli, impls
from triglot.bench.run import pool
from triglot.bench.run.arms import ARMS
from triglot.bench.run.cases import Cell, Settings
from triglot.bench.run.rounds import ExtraTime
from triglot.bench.run.sweep import Sweep
from triglot.bench.run.work import BenchedModel
from triglot.commands import bench as bench_command
from triglot.shared import console
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.inputs import random_batch
from triglot.shared.model.initializers import initialize, perturb
from triglot.shared.model.recipes import recipe

pytest.register_assert_rewrite("refusals", "torch_archives")

UNCOUNTED = 0.001  # seconds; see ``Settings``. Tests check no times.

# The defaults, which CI uses. The long proofs ask for more.
SHORT_FORM = {"seeds": 1, "paper_sizes": False, "training_steps": 12, "gpu": False}


def pytest_addoption(parser):
    parser.addoption(
        "--frameworks",
        default=",".join(impls.FRAMEWORKS),
        help="test only these, separated by commas, in an environment without the others",
    )
    parser.addoption(
        "--seeds",
        default=SHORT_FORM["seeds"],
        type=int,
        help="seeds for each planted bug and each random shape",
    )
    parser.addoption(
        "--paper-sizes", action="store_true", help="also run the articles' code at the sizes of the recipes"
    )
    parser.addoption(
        "--training-steps",
        default=SHORT_FORM["training_steps"],
        type=int,
        help="training steps in each framework",
    )
    parser.addoption("--gpu", action="store_true", help="also run what needs a GPU, in the frameworks that find one")
    parser.addoption("--browser", default="", help="the Chromium that opens pages")
    parser.addoption("--real-models", default="", help="the folder of the package with a trained model")
    parser.addoption("--long", action="store_true", help="also run the tests that take long")
    parser.addoption("--mutations", default=450, type=int, help="damaged checkpoints to read")


def pytest_configure(config):
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell that runs this in the background makes it ignore Ctrl-C, and processes that tests start inherit that.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.getoption("--gpu"):
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # JAX would take three quarters of the memory
    else:
        # Without a GPU, results are the same on every machine. No framework has been imported yet.
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if _is_short_form(config):
        # XLA compiles for every shape, and the tests use each shape only a few times. Without its optimisation, the
        # tests of JAX take half as long. The long proofs run what a user runs.
        os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false")
    unknown = set(_frameworks(config)) - set(impls.FRAMEWORKS)
    if unknown:
        raise pytest.UsageError(f"--frameworks: got {sorted(unknown)}, expected {list(impls.FRAMEWORKS)}")


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the marks in the same hook
def pytest_collection_modifyitems(config, items):
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            # The tests of a file share what JAX compiled for their shapes, if they run in one process.
            framework = _parameters(item).get("framework", _parameters(item).get("tried_in", ""))
            item.add_marker(pytest.mark.xdist_group(f"{item.path.stem} {framework}"))
    needed = {
        "audit": config.getoption("--seeds") > 1,
        "browser": config.getoption("--browser"),
        "real_models": config.getoption("--real-models"),
    }
    unwanted = [mark for mark, wanted in needed.items() if not wanted]
    frameworks = [*_frameworks(config), None]
    without_long = _leaves_out_long(config)
    left_out = [
        item
        for item in items
        if any(map(item.get_closest_marker, unwanted))
        or _parameters(item).get("tried_in") not in frameworks
        or (without_long and _takes_long(item))
    ]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        gone = set(left_out)
        items[:] = [item for item in items if item not in gone]


def _is_short_form(config):
    return all(config.getoption(name) == default for name, default in SHORT_FORM.items())


def _leaves_out_long(config):
    return _is_short_form(config) and not config.getoption("--long")


def _takes_long(item):
    """Whether a mark ``long`` of this test applies: one whose arguments, if any, equal the test's parameters."""
    parameters, marks = _parameters(item), list(item.iter_markers("long"))
    for mark in marks:
        if unknown := [*mark.args, *(name for name in mark.kwargs if name not in parameters)]:
            raise pytest.UsageError(f"{item.nodeid}: the mark long names {unknown}; expected {sorted(parameters)}")
    return any(mark.kwargs.items() <= parameters.items() for mark in marks)


def _parameters(item):
    return item.callspec.params if hasattr(item, "callspec") else {}


def pytest_collection_finish():
    """Keep the garbage collector from looking at thousands of tests and modules again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000)


def pytest_report_header(config):
    lines = [f"frameworks: {', '.join(_frameworks(config))}"]
    if _leaves_out_long(config):
        lines.append("long tests are left out; --long runs them")
    return lines


def pytest_generate_tests(metafunc):
    if "size" in metafunc.fixturenames:
        sizes = ["tiny", "paper"] if metafunc.config.getoption("--paper-sizes") else ["tiny"]
        metafunc.parametrize("size", sizes, scope="module")
    if "framework" in metafunc.fixturenames:
        metafunc.parametrize("framework", _frameworks(metafunc.config))
    if "implementation" in metafunc.fixturenames:
        metafunc.parametrize("implementation", [*_frameworks(metafunc.config), impls.REFERENCE])


@pytest.fixture
def make_checkpoint():
    """A function that makes a checkpoint of a recipe or configuration. No norm or bias in it is the identity."""

    def make(recipe_or_config, seed=0):
        config = recipe(recipe_or_config) if isinstance(recipe_or_config, str) else recipe_or_config
        return Checkpoint(config, perturb(initialize(config, seed), seed))

    return make


@pytest.fixture
def without_cpp(monkeypatch, pytestconfig):
    """``torch.compile`` captures graphs but runs them as they are, because compiling C++ takes a second per kernel.

    ``make audit`` compiles it.
    """
    if pytestconfig.getoption("--seeds") == 1:
        monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", lambda graph, *_, **__: graph.forward)


@pytest.fixture
def bfloat16_kernels():
    """Skip a test on a processor without kernels for bfloat16, where PaddlePaddle refuses this format."""
    import torch

    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("needs a processor with AVX-512")


@pytest.fixture
def check_small():
    """``triglot.check`` in this process, on a batch of the harness's own shape, because JAX compiles per shape."""

    def check(checkpoint, framework, **options):
        config = checkpoint.config
        lengths = [min(length, config.source_max_length) for length in (24, 11, 1, 17)]
        batch = random_batch(config, lengths, np.random.default_rng(0))
        return triglot.check(checkpoint, [framework], batches=[batch], isolate=False, **options)

    return check


@pytest.fixture
def no_more_rounds(monkeypatch):
    """Sweeps in this process add no rounds, however unsteady the machine is."""
    monkeypatch.setattr(ExtraTime, "share_of_group", lambda _self, started, remaining, groups: 0)


@pytest.fixture
def fakes(monkeypatch, no_more_rounds):
    """Register arms that run the reference, or fail in the way that their names say. The command of their worker.

    Each arm has one process, and sweeps add no rounds.
    """
    monkeypatch.setattr(bench_command, "Settings", partial(Settings, processes=1, uncounted=UNCOUNTED))
    monkeypatch.setattr(bench_command, "QUICK", replace(bench_command.QUICK, uncounted=UNCOUNTED))
    for name, arm in FAKE_ARMS.items():
        monkeypatch.setitem(ARMS, name, arm)
    monkeypatch.setattr(pool, "WARM_UP_WINDOW", 0.01)
    return WORKER


@pytest.fixture
def swept(make_checkpoint, fakes):
    """A function that sweeps fake arms over one cell. It returns the sweep, and the results by arm without twins."""

    def sweep(names, order="padded", **changed):
        short = {"seconds": 0.05, "rounds": 3, "processes": 1, "warm_up": 0.2, "uncounted": UNCOUNTED, "time_limit": 6}
        settings = Settings(**short | changed)
        cell = Cell("bert-base-tiny", "forward", order, "float32", "cpu", 2, 8, 0.75, 1)
        model = BenchedModel("bert-base-tiny", make_checkpoint("bert-base-tiny"))
        made = Sweep([model], [cell], names, settings, command=fakes)
        made.time_cells()
        return made, {result.case.arm: result for result in made.results if not result.case.is_twin}

    return sweep


@pytest.fixture
def command(monkeypatch, capsys):
    """A function that runs the command line in this process: exit code, standard output, standard error.

    However long a command takes, it prints no line of progress.
    """
    monkeypatch.setattr(console, "LINE_SECONDS", float("inf"))

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["triglot", *map(str, arguments)])
        # The command ignores Ctrl-C after an interrupt. Processes that later tests start would inherit that.
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        capsys.readouterr()
        try:
            with pytest.raises(SystemExit) as end:
                cli.main()
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
        return end.value.code or 0, *capsys.readouterr()

    return run


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """An empty folder, which is the working directory of the test."""
    folder = tmp_path / "workplace"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def _frameworks(config):
    return config.getoption("--frameworks").split(",")


@pytest.fixture
def browser(pytestconfig):
    """A function that opens a page in a real browser, without a screen, and returns what the browser made of it."""

    def open_page(path):
        options = ("--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=2000", "--dump-dom")
        command = [pytestconfig.getoption("--browser"), *options, path.as_uri()]
        result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        assert "Uncaught" not in result.stderr
        return result.stdout

    return open_page
