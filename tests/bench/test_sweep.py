"""A sweep of ``triglot bench``: what fails is a row, what is wrong has no speed, and turns are what they say."""

import errno
import itertools
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import triglot
from triglot import impls
from triglot.bench.report import report, statistics
from triglot.bench.report.statistics import Ratio
from triglot.bench.run import (
    benchmark,
    toolchain,
    worker,
    workers,
    workloads,
)
from triglot.bench.run import (
    extra_rounds as spare,
)
from triglot.bench.run import sweep as sweep_module
from triglot.bench.run import (
    triglot_arm as ours,
)
from triglot.bench.run.cases import Cell
from triglot.bench.run.extra_rounds import Spare
from triglot.bench.run.settings import ALLOCATORS, Settings
from triglot.bench.run.sweep import Sweep
from triglot.bench.run.toolchain import Toolchain
from triglot.bench.run.workers import Workers
from triglot.shared.model.recipes import recipe
from triglot.shared.worker import Worker

QUICK = Settings(seconds=0.05, rounds=3, warm_up=0.2, pause=0, time_limit=6)
MODELS = {"bert-base-tiny": {"weights_digest": "d", "config": recipe("bert-base-tiny").to_dict()}}


def children():
    """The processes whose parent this one is, those that nobody waits for any more included."""
    listed = subprocess.run(["ps", "-o", "ppid=,args=", "-A"], capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if line.split()[0] == str(os.getpid()) and "bench_worker" in line]


BROKEN = {
    "nnx": "MemoryError: Unable to allocate 100 TiB",
    "onnxruntime": "ImportError: no module named torchonnx",
    "torch-nn": "died by signal SIGSEGV",
    "paddle-nn": "died by signal SIGKILL, which often means out of memory",
    "triglot-paddle-jit": "ended with exit code 3",
    "triglot-torch-jit": "no answer within 6 s; raise the time limit, or find out why it hangs",
    "transformers-eager": "output diverged: the error is ",
    "transformers-sdpa": "output diverged",
    "transformers-compiled": "output diverged",
}


def test_a_failure_is_a_row_and_the_sweep_goes_on(swept, no_more_rounds):
    names = ["triglot-torch-eager", *BROKEN, "triglot-paddle-eager"]
    sweep, results = swept(names)
    assert [name for name, result in results.items() if result.status == "ok"] == [
        "triglot-torch-eager",
        "triglot-paddle-eager",
    ]
    for name, reason in BROKEN.items():
        assert (results[name].status, results[name].failure.split(":")[0]) == ("failed", reason.split(":")[0])
        assert reason in results[name].failure
    assert {one.a.split("/")[0] for one in sweep.comparisons} == {"triglot-torch-eager*", "triglot-paddle-eager"}
    assert children() == [], "no process outlives the sweep"
    found = report.to_dict(MODELS, sweep.results, sweep.comparisons, [], {"others": sweep.others})
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    # A model of a few hundred kilobytes, in an interpreter with NumPy.
    assert 0.2 < results["triglot-paddle-eager"].facts["peak_rss_mb"] < 300
    assert report.exit_code(found) == 1, "an arm that computes something else"
    text = report.markdown(found)
    assert "| torch-nn | failed: died by signal SIGSEGV" in text


@pytest.mark.parametrize("failing", ["torch-nn", "paddle-nn"], ids=["when it is built", "later"])
def test_a_reference_that_fails_is_replaced(failing, swept, no_more_rounds):
    sweep, results = swept(
        [failing, "triglot-jax-eager", "triglot-paddle-eager", "triglot-jax-jit"], together=1, again=False
    )
    assert results[failing].status == "failed"
    assert [name for name, result in results.items() if result.status == "ok"] == list(results)[1:]
    assert results[sweep.comparisons[-1].b.split("/")[0]].status == "ok"


def test_an_arm_that_takes_too_much_memory_is_a_row(swept, no_more_rounds):
    names = ["triglot-torch-eager", "triglot-torch-compiled", "triglot-paddle-eager"]
    for limit, reason in ((1024, "Unable to allocate 2.00 GiB"), (None, "")):
        _, results = swept(names, memory_limit_mb=limit, time_limit=60)
        assert [result.status for result in results.values()].count("ok") == (2 if limit else 3)
        assert reason in results[names[1]].failure
        assert results[names[1]].failure.endswith(
            "(it had 1024 MiB: raise --memory-limit if that was too little)" if limit else ""
        )
    assert children() == []


def test_an_unsteady_machine_is_measured_for_longer(swept, monkeypatch):
    """Up to six times as long, until the intervals are narrow, if there is time."""
    for precise, seconds, expected in ((True, 30, 1), (False, 30, 6), (False, 0, 1)):
        monkeypatch.setattr(Ratio, "is_precise", precise)
        monkeypatch.setattr(Spare, "of_group", lambda *_, seconds=seconds: seconds)
        sweep, results = swept(["triglot-torch-eager", "triglot-paddle-eager"])
        assert [len(result.rounds) for result in results.values()] == [expected * 3] * 2
        assert len(sweep.comparisons) == 2


def test_the_first_group_does_not_take_the_time_of_the_others(swept, monkeypatch):
    """Each may spend its share of the time for more rounds, and what those before it left."""
    names = [f"triglot-{name}" for name in ("torch-eager", "paddle-eager", "jax-eager", "jax-jit")]
    monkeypatch.setattr(spare, "CELL", 0.0)
    for spent, expected in ((0.0, [4, 6, 12]), (1.0, [4, 5.5, 10]), (4.0, [4, 4, 4])):
        shares = []

        def take_turns(self, reference, others, running, share, shares=shares, spent=spent):
            shares.append(share())
            return reference, spent

        monkeypatch.setattr(Sweep, "_take_turns", take_turns)
        swept(names, together=1, again=False)
        assert shares == expected


def test_a_cell_of_few_arms_has_more_time(monkeypatch):
    """What a cell of 240 seconds leaves at the pace so far; a slow one has 12 all the same."""
    now = [0.0]
    monkeypatch.setattr(spare, "monotonic", lambda: now[0])
    time = spare.Spare()
    now[0] = 40.0
    assert time.of_group(started=2, left=0, groups=1) == 200
    assert time.of_group(started=4, left=6, groups=2) == 70
    assert time.of_group(started=4, left=20, groups=3) == 4
    time.spend(3)
    assert time.of_group(started=4, left=20, groups=3) == 3


def test_large_models_are_timed_with_fewer_workers_alive():
    assert [sweep_module.beside(mebibytes, 3) for mebibytes in (0, 500, 1800, 2500, 3500, 50_000)] == [3, 3, 3, 2, 1, 1]
    assert sweep_module.beside(500, 3, available_mb=1600) == 2
    assert sweep_module.beside(500, 3, available_mb=100) == 1


def test_the_first_call_of_a_turn_does_not_count(swept, monkeypatch):
    """It would measure what the others' turns left behind; of a long call that is too little to be asked for twice."""
    asked = []
    send = Worker.send
    monkeypatch.setattr(Worker, "send", lambda self, kind, request: (asked.append(request), send(self, kind, request)))
    for long, seconds in ((1.0, [workers.AWAKE, 0.1]), (0.0, [0.1])):
        monkeypatch.setattr(workers, "LONG", long)
        asked.clear()
        _, results = swept(["triglot-torch-eager"], seconds=0.2, rounds=2, again=False)
        found = results["triglot-torch-eager"]
        turns = asked[-2 * len(seconds) :]
        assert [request["seconds"] for request in turns] == seconds * 2
        assert sum(map(sum, found.rounds)) > 0.9 * 200, "what counts is as long as it was asked to be, but for the loop"
        assert len(found.rounds) == 2


def test_samples_take_as_long_as_was_asked_for(monkeypatch):
    """To half a call: whoever began another call while there is time would take twice the time for long ones."""
    now = [0.0]

    def call():
        now[0] += 10

    monkeypatch.setattr(worker, "time", SimpleNamespace(perf_counter=lambda: now[0], process_time=lambda: 0.0))
    prepared: Any = SimpleNamespace(call=call, wait=lambda _: None)
    for seconds, least, expected in ((1, 1, 1), (14, 1, 1), (16, 1, 2), (24, 1, 2), (26, 1, 3), (26, 5, 5), (0, 0, 1)):
        assert worker.sample(prepared, None, seconds, least)["samples_ms"] == [10_000.0] * expected


def test_no_worker_finds_what_another_has_compiled(swept, monkeypatch):
    """That would shorten its cold start."""
    folders = []
    start = Worker.__init__

    def started(self, *arguments):
        surroundings = arguments[4]
        folders.append(Path(surroundings["TMPDIR"]))
        for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
            assert Path(surroundings[name]).parent == folders[-1]
        assert surroundings["JAX_ENABLE_COMPILATION_CACHE"] == "false"
        start(self, *arguments)

    monkeypatch.setattr(Worker, "__init__", started)
    swept(["triglot-torch-eager", "triglot-paddle-eager"])
    assert len(folders) == len(set(folders)) == 3
    assert not any(folder.exists() for folder in folders), "they go when the sweep has gone"


MODEL = """
import torch
torch.set_grad_enabled(False)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.LayerNorm(8)).eval()
torch.compile(model, options={"freezing": True})(torch.ones(4, 8))
"""


def test_what_the_compiler_learns_of_the_machine_is_in_no_cold_start(tmp_path):
    """A model, compiled with its weights, finds the headers there, and what was tried of the processor."""
    folders = [tmp_path / name for name in ("first", "second")]
    with Toolchain(time_limit=300) as known:
        for folder in folders:
            known.copy_to(folder)
    first, before = ({path.relative_to(folder) for path in folder.rglob("*.*")} for folder in folders)
    assert first == before
    assert {".so", ".gch"} <= {path.suffix for path in before}
    subprocess.run(
        [sys.executable, "-c", MODEL], check=True, env={**os.environ, **toolchain.compiling_into(folders[1])}
    )
    after = {path.relative_to(folders[1]) for path in folders[1].rglob("*.*")}
    new = [path.name for path in after - before if path.suffix in (".so", ".gch")]
    assert new
    assert all(name.endswith(".main.so") for name in new), "the kernels of the model alone"


@pytest.mark.parametrize("end", ["import time; time.sleep(100)", "raise SystemExit(1)"])
def test_half_of_what_the_compiler_learns_is_not_taken_for_the_whole(end, tmp_path, monkeypatch):
    """An empty file, say, would be a processor without vector instructions. Nobody goes on with it either."""
    begun = tmp_path / "begun"
    code = f"""
import os, pathlib, subprocess, sys
pathlib.Path(os.environ["TMPDIR"], "half.so").touch()
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
pathlib.Path({str(begun)!r}).write_text(str(child.pid))
{end}
"""
    monkeypatch.setattr(toolchain, "COMMAND", (sys.executable, "-c", code))
    folders = [tmp_path / name for name in ("first", "second")]
    with Toolchain(time_limit=3) as known:
        for folder in folders:
            folder.mkdir()
            known.copy_to(folder)
            assert list(folder.iterdir()) == []
    listed = subprocess.run(["ps", "-o", "stat=", "-p", begun.read_text()], capture_output=True, text=True, check=False)
    assert listed.stdout.strip() in ("", "Z", "Zs", "ZN"), "what it had started has ended"


def test_no_room_for_what_the_compiler_learns_is_a_row(swept, monkeypatch):
    def copy_to(self, folder):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Toolchain, "copy_to", copy_to)
    with Toolchain(time_limit=1) as known:
        _, results = swept(["triglot-torch-eager", "triglot-torch-jit"], toolchain=known)
    assert [result.status for result in results.values()] == ["ok", "failed"]
    assert results["triglot-torch-jit"].failure == "there is no room to compile in: No space left on device"


def test_what_pytorch_compiles_on_a_processor_has_its_toolchain_prepared(swept, monkeypatch):
    prepared = []
    monkeypatch.setattr(Toolchain, "copy_to", lambda _, folder: prepared.append(folder.name))
    names = ["triglot-torch-eager", "triglot-torch-jit", "triglot-paddle-jit", "transformers-compiled", "onnxruntime"]
    with Toolchain(time_limit=1) as known:
        swept(names, toolchain=known, time_limit=1)
    assert [name.rsplit("-", 2)[0] for name in prepared] == ["triglot-torch-jit", "transformers-compiled"]


def test_a_slow_arm_has_fewer_rounds():
    """As many calls as take the time that was asked for; six at least."""
    settings = Settings(seconds=3, rounds=48)
    assert [sweep_module.rounds_for(call, settings) for call in (0, 1 / 16, 0.07, 0.35, 10)] == [48, 48, 43, 9, 6]
    assert sweep_module.rounds_for(10, replace(settings, rounds=2)) == 2


@pytest.mark.parametrize(("wanted", "count"), [(1, 1), (6, 6), (6, 10), (6, 48), (47, 48)])
def test_the_rounds_of_a_slow_arm_are_spread_evenly(wanted, count):
    numbers = [number for number in range(count) if sweep_module.takes_part(number, wanted, count)]
    assert len(numbers) == wanted
    gaps = [after - before for before, after in itertools.pairwise(numbers)]
    assert not gaps or max(gaps) - min(gaps) <= 1


def test_a_slow_arm_is_paired_with_the_rounds_that_it_took_part_in(swept, monkeypatch, no_more_rounds):
    """Of the reference too; rounds in which the machine was in another mood have nothing to say of it."""
    monkeypatch.setattr(Workers, "expected", lambda _, case: 0.01 if case.arm == "triglot-torch-eager" else 0.1)
    milliseconds = {"triglot-torch-eager": range(1, 13), "triglot-paddle-eager": (6, 12, 18, 24, 30, 36)}
    samples = {arm: map(float, values) for arm, values in milliseconds.items()}

    def sample(self, case, seconds):
        self.result(case).rounds.append([next(samples[case.arm])])
        return True

    monkeypatch.setattr(Workers, "sample", sample)
    sweep, results = swept(list(samples), again=False, rounds=12, seconds=0.2)
    assert [len(result.rounds) for result in results.values()] == [12, 6]
    (found,) = sweep.comparisons
    assert found.ratio.median == pytest.approx(3.0)
    assert (found.ratio.low, found.ratio.high) == pytest.approx((3 / 1.018, 3 * 1.018), rel=1e-3), "no round deviates"


def test_a_reference_that_dies_late_leaves_no_ratio_of_a_round_or_two(swept, monkeypatch, no_more_rounds):
    """Two slow arms shared few rounds with each other until then; the one with more of them takes its place."""
    names = [f"triglot-{name}" for name in ("torch-eager", "paddle-eager", "jax-eager", "jax-jit")]
    calls = dict(zip(names, (0.01, 0.3, 0.22, 0.1), strict=True))
    monkeypatch.setattr(Workers, "expected", lambda _, case: calls[case.arm])
    for dies, pairs in ((5, {names[1]: 6, names[2]: 7}), (47, {})):
        taken = dict.fromkeys(names, 0)

        def sample(self, case, seconds, taken=taken, dies=dies):
            taken[case.arm] += 1
            if case.arm == names[0] and taken[case.arm] == dies:
                self.result(case).status = "failed"
                self.close([case])
                return False
            self.result(case).rounds.append([calls[case.arm]])
            return True

        compared = []
        with monkeypatch.context() as patched:
            patched.setattr(
                statistics, "ratio", lambda a, b, lengths=compared: (lengths.append(len(a)), Ratio(1.0, 0.9, 1.1))[1]
            )
            patched.setattr(Workers, "sample", sample)
            sweep, _ = swept(names, again=False, rounds=48, seconds=1.5)
        found = {one.a.split("/")[0]: one.b.split("/")[0] for one in sweep.comparisons}
        assert found == dict.fromkeys(pairs, names[3])
        assert compared == list(pairs.values())


def test_an_arm_on_another_number_of_threads_is_not_timed(monkeypatch):
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    torch = SimpleNamespace(get_num_threads=lambda: threads)
    worker._check_threads(threads, {"torch": torch})
    torch.get_num_threads = lambda: threads + 1
    with pytest.raises(triglot.TriglotError, match=f"PyTorch has {threads + 1} threads, not {threads}"):
        worker._check_threads(threads, {"torch": torch})
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(threads + 2)), raising=False)
    with pytest.raises(triglot.TriglotError, match=f"the process has {threads + 2} and PyTorch has {threads + 1} thr"):
        worker._check_threads(threads, {"torch": torch})


def test_free_memory_goes_back_to_the_system_before_times_are_taken():
    """A worker keeps what a call frees, for the next, but not what its outputs took."""
    program = """
import numpy as np
from triglot.bench.run import worker

def build(request):
    held = [np.ones(2**15) for _ in range(1000)]  # 250 MiB in blocks that are kept
    del held
    worker.full = worker.memory.resident()
    return object(), {}

worker.build = build
worker.sample = lambda *_: {"freed": worker.full - worker.memory.resident()}
worker.main()
"""
    asked = [{"case": {"framework": "torch", "device": "cpu"}}, {"seconds": 0, "least": 1}]
    found = subprocess.run(
        [sys.executable, "-P", "-c", program],
        input="\n".join(json.dumps(request) for request in asked),
        env={**os.environ, **ALLOCATORS["keep"]},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(found.stdout.splitlines()[-1])["freed"] > 200 * 2**20


def test_what_was_taken_to_judge_goes_back(swept, monkeypatch):
    """Of every arm, those that are wrong too, before the next one is built."""
    given_back = []
    monkeypatch.setattr(workers.memory, "give_back", lambda: given_back.append(1))
    swept(["triglot-torch-eager", "triglot-paddle-eager", "transformers-sdpa"])
    assert len(given_back) == 1 + 4, "once for what is right, once for each arm, the reference's twin included"


def test_free_memory_goes_back_to_the_system_before_workers_start():
    """What gradients took on the way to the truth would be missing beside the workers of a large model."""
    program = """
import numpy as np
from triglot.bench.machine import memory
from triglot.bench.run.work import Work

def computed():
    global full
    held = [np.ones(2**15) for _ in range(1000)]  # 250 MiB in blocks that are kept
    del held
    full = memory.resident()
    return object()

work = object.__new__(Work)
work._expectation, work._unknown, work._computed = None, None, computed
work.expectation()
print(full - memory.resident())
"""
    found = subprocess.run(
        [sys.executable, "-P", "-c", program],
        env={**os.environ, **ALLOCATORS["keep"]},
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(found.stdout) > 200 * 2**20


def test_the_tokens_of_a_generation_are_counted(make_checkpoint):
    """Those that the model said up to the end of each target, padding too, but not the first, which is given."""
    targets = [[1, 5, 2, 6, 3, 2, 2], [1, 3, 2, 2, 2, 2, 2], [1, 4, 4, 4, 4, 4, 4]]  # 3 is the end, 2 is padding
    assert ours.said(np.array(targets), 3) == 4 + 1 + 6
    checkpoint = make_checkpoint("translation-tiny")
    cell = Cell("m", "generation", "padded", "float32", "cpu", 8, 19, 1.0, 1)
    (batch,) = workloads.batches_of(cell, checkpoint.config, None, 0)
    source = batch.arrays()["source"]
    assert (source[batch.valid] == checkpoint.config.pad_id).any(), "a token like any other, as its batch says"
    sweep = Sweep(checkpoint, ["triglot-torch-eager"], QUICK, tokenizer=None, command=benchmark.WORKER)
    sweep.run(cell)
    assert sweep.results[0].status == "ok", sweep.results[0].failure
    facts = sweep.results[0].facts
    ids = impls.build("numpy", checkpoint).generate(source)
    expected = ids[:, 1:].size  # with random weights, nothing ends
    assert not (ids == checkpoint.config.end_id).any()
    assert facts["tokens_per_second"] == pytest.approx(expected / (facts["latency_ms"]["p50"] / 1000))
