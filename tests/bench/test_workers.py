"""Worker processes of the benchmark, seen from both ends: what they are asked, what they time, and their memory."""

import os
import resource
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import triglot
from triglot import impls
from triglot.bench.machine import load
from triglot.bench.run import arms, batches, pool, worker
from triglot.bench.run.cases import ALLOCATORS, Cell, Settings
from triglot.bench.run.sweep import Sweep
from triglot.bench.run.work import BenchedModel
from triglot.shared import worker as shared_worker
from triglot.shared.environment import THREAD_VARIABLES
from triglot.shared.worker import Worker

HELD = "held = [np.ones(2**15) for _ in range(1000)]  # 250 MiB in blocks that the allocator keeps\n    del held"


@pytest.mark.parametrize(("long_call", "uncounted"), [(1.0, 0.01), (0.0, 0.0)])
def test_the_first_calls_of_a_turn_do_not_count(long_call, uncounted, swept, monkeypatch):
    """It would measure what the turns of others left behind. Long calls are not repeated for that."""
    requests = []
    send = Worker.send
    monkeypatch.setattr(
        Worker,
        "send",
        lambda self, kind, request: (requests.append((kind, request)), send(self, kind, request)),
    )
    monkeypatch.setattr(pool, "LONG_CALL", long_call)
    _, results = swept(["fake-a"], seconds=0.2, rounds=2, uncounted=0.01, again=False)
    result = results["fake-a"]
    turn = [("sample", {"seconds": 0.1, "least": 1, "uncounted": uncounted}), ("settle", {})]
    assert requests[-4:] == turn * 2
    assert sum(map(sum, result.rounds)) > 0.9 * 200, "the counted calls take the requested time, less the loop itself"
    assert len(result.rounds) == 2


def test_calls_that_do_not_count_are_not_in_the_answer(tmp_path):
    program = """
from triglot.bench.run import worker

def sample(prepared, clock, seconds, least):
    requests.append([seconds, least])
    return {"requests": requests[-1:] if len(requests) == 2 else None, "all": requests}

requests = []
worker.build = lambda request: (object(), {})
worker.sample = sample
worker.main()
"""
    process = Worker([sys.executable, "-P", "-c", program], tmp_path / "log", 1, 60, {})
    process.send("build", {"arm": {"framework": "torch"}, "cell": {"device": "cpu"}})
    process.receive()
    process.send("sample", {"seconds": 0.5, "least": 2, "uncounted": 0.1})
    answer = process.receive()
    process.close()
    assert answer["all"] == [[0.1, 1], [0.5, 2]]
    assert answer["requests"] == [[0.5, 2]], "the answer is that of the calls that count"


def test_samples_take_about_the_requested_time(monkeypatch):
    """To half a call. A loop that only looks at the time left would take twice the time for long calls."""
    now = [0.0]

    def call():
        now[0] += 10

    monkeypatch.setattr(worker, "time", SimpleNamespace(perf_counter=lambda: now[0], process_time=lambda: 0.0))
    prepared: Any = SimpleNamespace(call=call, wait=lambda _: None)
    for seconds, least, calls in ((1, 1, 1), (14, 1, 1), (16, 1, 2), (24, 1, 2), (26, 1, 3), (26, 5, 5), (0, 0, 1)):
        assert worker.sample(prepared, None, seconds, least)["samples_ms"] == [10_000.0] * calls


@pytest.mark.parametrize(("spin", "cores", "waits"), [(0.0, 2, 1), (0.2, 1, 21), (1.5, 0.2, 151), (3.0, 0.05, 1)])
def test_a_turn_ends_when_its_threads_sleep(spin, cores, waits, monkeypatch):
    """Threads that spin for so many seconds would take the cores from the next arm."""
    now = [0.0, 0]

    def sleep(seconds):
        now[0] += seconds
        now[1] += 1

    busy = SimpleNamespace(perf_counter=lambda: now[0], process_time=lambda: cores * min(now[0], spin), sleep=sleep)
    monkeypatch.setattr(worker, "time", busy)
    worker.settle()
    assert now[1] == pytest.approx(waits, abs=1)


def test_threads_that_never_sleep_are_refused(monkeypatch):
    now = [0.0]
    busy = SimpleNamespace(perf_counter=lambda: now[0], process_time=lambda: now[0])
    busy.sleep = lambda seconds: now.__setitem__(0, now[0] + seconds)
    monkeypatch.setattr(worker, "time", busy)
    with pytest.raises(triglot.TriglotError, match=r"still use 1\.0 processors.*unset OMP_WAIT_POLICY"):
        worker.settle()


def test_an_arm_runs_in_the_environment_of_the_user(swept, monkeypatch):
    """What else is set may change the speed of one framework and not of another, as OMP_WAIT_POLICY does."""
    for name in ("GLOG_minloglevel", "XLA_PYTHON_CLIENT_PREALLOCATE"):  # an earlier test may have set them
        monkeypatch.delenv(name, raising=False)
    changed = set()

    def start(command, *, env, **options):
        changed.update(name for name in env if env[name] != os.environ.get(name))
        return subprocess.Popen(command, env=env, **options)

    monkeypatch.setattr(shared_worker, "subprocess", SimpleNamespace(Popen=start, PIPE=subprocess.PIPE))
    swept(["fake-a"])
    only_cold_starts = {"TMPDIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "JAX_ENABLE_COMPILATION_CACHE"}
    only_messages, only_gpu = "GLOG_minloglevel", "XLA_PYTHON_CLIENT_PREALLOCATE"
    assert changed - set(THREAD_VARIABLES) == {*only_cold_starts, only_messages, only_gpu}


@pytest.mark.long
def test_workers_share_no_compiler_cache(swept, monkeypatch):
    """A shared cache would shorten cold starts."""
    folders = []
    start = Worker.__init__

    def started(self, *arguments):
        variables = arguments[4]
        folders.append(Path(variables["TMPDIR"]))
        for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
            assert Path(variables[name]).parent == folders[-1]
        assert variables["JAX_ENABLE_COMPILATION_CACHE"] == "false"
        start(self, *arguments)

    monkeypatch.setattr(Worker, "__init__", started)
    swept(["fake-a", "fake-b"])
    assert len(folders) == len(set(folders)) == 3
    assert not any(folder.exists() for folder in folders)


def test_an_arm_on_another_number_of_threads_is_refused(monkeypatch):
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    torch = SimpleNamespace(get_num_threads=lambda: threads)
    worker._check_threads(threads, {"torch": torch})
    torch.get_num_threads = lambda: threads + 1
    with pytest.raises(triglot.TriglotError, match=rf"PyTorch has {threads + 1} threads.*expected {threads}"):
        worker._check_threads(threads, {"torch": torch})
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(threads + 2)), raising=False)
    with pytest.raises(triglot.TriglotError, match=rf"process has {threads + 2} and PyTorch has {threads + 1} threads"):
        worker._check_threads(threads, {"torch": torch})


def test_memory_of_building_is_returned_before_times_are_taken(tmp_path):
    program = f"""
import numpy as np
from triglot.bench.run import worker

def build(request):
    {HELD}
    worker.full = worker.load.resident()
    return object(), {{}}

worker.build = build
worker.sample = lambda *_: {{"freed": worker.full - worker.load.resident()}}
worker.main()
"""
    process = Worker([sys.executable, "-P", "-c", program], tmp_path / "log", 1, 60, ALLOCATORS["keep"])
    process.send("build", {"arm": {"framework": "torch"}, "cell": {"device": "cpu"}})
    process.receive()
    process.send("sample", {"seconds": 0, "least": 1, "uncounted": 0})
    assert process.receive()["freed"] > 200 * 2**20
    process.close()


def test_memory_of_the_truth_is_returned_before_workers_start():
    program = f"""
import numpy as np
from triglot.bench.machine import load
from triglot.bench.run.work import Work

def compute_truth():
    global full
    {HELD}
    full = load.resident()
    return object()

work = object.__new__(Work)
work._truth, work._compute_truth = None, compute_truth
work.truth()
print(full - load.resident())
"""
    environment = {**os.environ, **ALLOCATORS["keep"]}
    command = [sys.executable, "-P", "-c", program]
    finished = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert int(finished.stdout) > 200 * 2**20


def test_the_peak_of_memory_is_in_bytes_on_macos_too(monkeypatch, tmp_path):
    monkeypatch.setattr(load, "_PROCESS", tmp_path / "missing")
    monkeypatch.setattr(sys, "platform", "darwin")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert before <= load.peak_resident() <= 2 * before


@pytest.mark.long
@pytest.mark.usefixtures("no_more_rounds")
def test_generated_tokens_are_counted(make_checkpoint):
    """Generated tokens count up to the end of each target, padding included. The first token is given."""
    targets = [[1, 5, 2, 6, 3, 2, 2], [1, 3, 2, 2, 2, 2, 2], [1, 4, 4, 4, 4, 4, 4]]  # 3 is the end, 2 is padding
    assert arms.count_generated(np.array(targets), 3) == 4 + 1 + 6
    checkpoint = make_checkpoint("translation-tiny")
    cell = Cell("m", "generation", "padded", "float32", "cpu", 8, 19, 1.0, 1)
    batch: Any = batches.batches_of_cell(cell, checkpoint.config, None, 0)[0]
    assert (batch.source[batch.valid] == checkpoint.config.pad_id).any(), "a real token may have the id of padding"
    settings = Settings(seconds=0.05, rounds=3, processes=1, warm_up=0.2, uncounted=0.001)
    sweep = Sweep([BenchedModel("m", checkpoint)], [cell], ["triglot-torch-eager"], settings)
    sweep.time_cells()
    result = sweep.results[0]
    assert result.latency_ms is not None, result.failure
    ids = impls.build("numpy", checkpoint).generate(batch.source)
    assert not (ids == checkpoint.config.end_id).any(), "random weights end nothing"
    assert result.tokens_per_second == pytest.approx(ids[:, 1:].size / (result.latency_ms.p50 / 1000))
