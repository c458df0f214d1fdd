"""``triglot bench``: what fails is a row, what is wrong has no speed, and a sweep can be gone on with."""

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import triglot
from triglot import benchmark, impls
from triglot.bench import arms, comparison, gpu, ours, readme, report, roofline, worker, workers, workloads
from triglot.bench import sweep as sweep_module
from triglot.bench.arms import ARMS
from triglot.bench.cases import Case, Cell, cells
from triglot.bench.expectations import Expectation
from triglot.bench.settings import ALLOCATORS, Settings
from triglot.bench.statistics import Ratio
from triglot.bench.sweep import Sweep
from triglot.commands.bench import Kept
from triglot.shared.environment import cores, environment
from triglot.shared.errors import BenchError, FrameworkError
from triglot.shared.parity.workers import Worker
from triglot.shared.recipes import recipe

ROOT = Path(__file__).parents[1]
FAKES = (sys.executable, "-P", str(Path(__file__).with_name("bench_worker.py")))
QUICK = Settings(seconds=0.05, rounds=3, warm_up=0.2, pause=0, time_limit=6)
SAME = ("--batch", "2", "--length", "8", "--fill", "0.75", "--threads", "1")  # what CELL is
SHORT = ("--batch", "2", "--length", "8", "--seconds", "0.1", "--rounds", "2")
NO_ROOFLINE = {"dtype": "float32", "device": "cpu", "threads": cores(), "gflops": None, "copy_gb_per_s": None}
NO_ROOFLINE["frameworks"] = {}
MODELS = {"bert-base-tiny": {"weights_digest": "d", "config": recipe("bert-base-tiny").to_dict()}}
CELL = Cell("bert-base-tiny", "forward", "padded", "float32", "cpu", 2, 8, 0.75, 1)


def swept(make_checkpoint, names, settings=QUICK):
    sweep = Sweep(make_checkpoint("bert-base-tiny"), names, settings, tokenizer=None, command=FAKES)
    sweep.run(CELL)
    return sweep, {result.case.arm: result for result in sweep.results if not result.case.copy}


def children():
    """The processes whose parent this one is, those that nobody waits for any more included."""
    listed = subprocess.run(["ps", "-o", "ppid=,args=", "-A"], capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if line.split()[0] == str(os.getpid()) and "bench_worker" in line]


BROKEN = {
    "nnx": "MemoryError: Unable to allocate 100 TiB",
    "onnxruntime": "ImportError: no module named torchonnx",
    "torch-nn": "died by signal SIGSEGV",
    "paddle-nn": "died by signal SIGKILL, as when memory runs out",
    "triglot-paddle-jit": "ended with exit code 3",
    "triglot-torch-jit": "no answer within 6 s; raise the time limit, or see why it hangs",
    "transformers-eager": "output is not what the reference computes: off by 0.",
    "transformers-sdpa": "output is not what the reference computes",
    "transformers-compiled": "output is not what the reference computes",
}


def test_a_failure_is_a_row_and_the_sweep_goes_on(make_checkpoint):
    names = ["triglot-torch-eager", *BROKEN, "triglot-paddle-eager"]
    sweep, results = swept(make_checkpoint, names)
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
def test_a_reference_that_fails_is_replaced(failing, make_checkpoint):
    settings = replace(QUICK, together=1, again=False)
    sweep, results = swept(
        make_checkpoint, [failing, "triglot-jax-eager", "triglot-paddle-eager", "triglot-jax-jit"], settings
    )
    assert results[failing].status == "failed"
    assert [name for name, result in results.items() if result.status == "ok"] == list(results)[1:]
    assert results[sweep.comparisons[-1].b.split("/")[0]].status == "ok"


def test_an_arm_that_takes_too_much_memory_is_a_row(make_checkpoint):
    names = ["triglot-torch-eager", "triglot-torch-compiled", "triglot-paddle-eager"]
    for limit, reason in ((1024, "Unable to allocate 2.00 GiB"), (None, "")):
        settings = replace(QUICK, memory_limit_mb=limit, time_limit=60)
        _, results = swept(make_checkpoint, names, settings)
        assert [result.status for result in results.values()].count("ok") == (2 if limit else 3)
        assert reason in results[names[1]].failure
        assert results[names[1]].failure.endswith(
            "(it had 1024 MiB: raise --memory-limit if that was too little)" if limit else ""
        )
    assert children() == []


def test_a_machine_whose_speed_varies_is_said_to(make_checkpoint):
    swept_once, _ = swept(make_checkpoint, ["triglot-torch-eager", "triglot-paddle-eager"])
    found = report.to_dict(MODELS, swept_once.results, swept_once.comparisons, [], {"others": {}})
    reference = next(case for case in found["cases"] if case["arm"] == "triglot-torch-eager")
    for slow, said in ((1.0, False), (1.1, False), (1.5, True)):
        reference.update(samples_ms=[1.0, 1.01] * 5 + [slow, slow * 1.01] * 5, round_lengths=[2] * 10)
        assert report.unsteadiness(found, CELL.id) == pytest.approx(slow)
        assert ("speed itself varied by a factor of 1.50" in report.notes(found, CELL.id)) == said


def test_an_unsteady_machine_is_measured_for_longer(make_checkpoint, monkeypatch):
    """Up to three times as long, until the intervals are narrow, if there is time."""
    for precise, spare, expected in ((True, 30, 1), (False, 30, 3), (False, 0, 1)):
        monkeypatch.setattr(Ratio, "is_precise", precise)
        monkeypatch.setattr(sweep_module, "SPARE", spare)
        sweep, results = swept(make_checkpoint, ["triglot-torch-eager", "triglot-paddle-eager"])
        assert [len(result.rounds) for result in results.values()] == [expected * QUICK.rounds] * 2
        assert len(sweep.comparisons) == 2


def test_large_models_are_timed_with_fewer_workers_alive():
    assert [sweep_module.beside(mebibytes, 3) for mebibytes in (0, 500, 1800, 2500, 3500, 50_000)] == [3, 3, 3, 2, 1, 1]
    assert sweep_module.beside(500, 3, available_mb=1600) == 2
    assert sweep_module.beside(500, 3, available_mb=100) == 1


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


def test_a_device_is_timed_by_its_own_clock():
    """Its two events stand around the call alone, the wait behind them; a CPU and JAX have no such clock."""
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


def test_the_first_call_of_a_turn_does_not_count(make_checkpoint, monkeypatch):
    """It would measure what the others' turns left behind; of a long call that is too little to be asked for twice."""
    asked = []
    send = Worker.send
    monkeypatch.setattr(Worker, "send", lambda self, request: (asked.append(request), send(self, request)))
    for long, seconds in ((1.0, [workers.AWAKE, 0.1]), (0.0, [0.1])):
        monkeypatch.setattr(workers, "LONG", long)
        asked.clear()
        settings = replace(QUICK, seconds=0.2, rounds=2, again=False)
        _, results = swept(make_checkpoint, ["triglot-torch-eager"], settings)
        found = results["triglot-torch-eager"]
        turns = asked[-2 * len(seconds) :]
        assert [request["seconds"] for request in turns] == seconds * 2
        assert sum(map(sum, found.rounds)) > 0.9 * 200, "what counts is as long as it was asked to be, but for the loop"
        assert len(found.rounds) == 2


def test_a_slow_arm_has_fewer_rounds():
    """Twice the time that was asked for, half of which does not count; six at least."""
    settings = Settings(seconds=3, rounds=48)
    assert [sweep_module.rounds_for(slowest, settings) for slowest in (0, 1 / 16, 0.07, 0.35, 10)] == [48, 48, 43, 9, 6]
    assert sweep_module.rounds_for(10, replace(settings, rounds=2)) == 2


def test_a_device_that_is_not_there_is_refused_before_it_is_asked():
    """In the same words for every framework; JAX would raise, and stock modules say what they like."""

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
        gpu.check(name, "cpu", missing)
        gpu.check(name, "cuda", there)
        with pytest.raises(gpu.DeviceMissingError, match=f"^{name} finds no cuda device; choose --device cpu$"):
            gpu.check(name, "cuda", missing)


def test_a_machine_without_a_gpu_says_so_at_once(workplace, command, monkeypatch):
    """One process for each framework, none for each arm."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(benchmark, "WORKER", ("false",))
    code, out, err = command("bench", "bert-base-tiny", "--device", "cuda", *SHORT, "--json", "bench.json")
    names = ", ".join(impls.installed())
    assert (code, out) == (2, "")
    assert err == f"triglot: no cuda device is found by {names}; choose --device cpu\n"
    assert not Path("bench.json").exists()


def test_a_roofline_that_is_not_reached_is_no_missing_device():
    benchmark.check_device("cuda", {"frameworks": {"torch": {"failure": "out of memory"}, "jax": {"missing": True}}})
    benchmark.check_device("cpu", {"frameworks": {}})
    with pytest.raises(BenchError, match=r"^no cuda device is found by torch, jax; choose --device cpu$"):
        benchmark.check_device("cuda", {"frameworks": {"torch": {"missing": True}, "jax": {"missing": True}}})


def test_free_memory_goes_back_to_the_system_before_times_are_taken():
    """A worker keeps what a call frees, for the next, but not what its outputs took."""
    program = """
import numpy as np
from triglot.bench import worker

def build(request):
    held = [np.ones(2**15) for _ in range(1000)]  # 250 MiB in blocks that are kept
    del held
    worker.full = worker.resident()
    return object(), {}

worker.build = build
worker.sample = lambda *_: {"freed": worker.full - worker.resident()}
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


def test_what_a_device_says_is_reported(make_checkpoint):
    sweep, results = swept(make_checkpoint, ["triglot-torch-eager"])
    found = report.to_dict(MODELS, sweep.results, sweep.comparisons, [], {"others": {}})
    assert found["cases"][0]["device_ms"] is None
    assert "GPU" not in report.markdown(found)
    results["triglot-torch-eager"].facts["device_ms"] = {"p50": 0.25}
    found = report.to_dict(MODELS, sweep.results, sweep.comparisons, [], {"others": {}})
    assert " (GPU 0.25) |" in report.markdown(found)
    assert "from its first work to its last, by the clock of the device." in report.markdown(found)


def test_an_arm_that_cannot_take_part_is_skipped_with_the_reason(monkeypatch):
    encoder, pair = recipe("bert-base-tiny"), recipe("translation-tiny")
    assert ARMS["triglot-torch-eager"].why_not(encoder, "forward", "float32", "cpu") is None
    assert (
        ARMS["triglot-torch-eager"].why_not(encoder, "generation", "float32", "cpu") == "an encoder does not generate"
    )
    assert ARMS["nnx"].why_not(pair, "forward", "float32", "cpu") == "computes BERTs alone"
    assert ARMS["nnx"].why_not(recipe("dygraph-tiny"), "forward", "float32", "cpu") is not None
    assert ARMS["triglot-paddle-jit"].why_not(encoder, "forward", "bfloat16", "cpu") == "has no bfloat16 here"
    assert ARMS["triglot-paddle-jit"].why_not(encoder, "forward", "bfloat16", "cuda") is None
    assert ARMS["triglot-paddle-compiled"].why_not(encoder, "forward", "bfloat16", "cpu") is None
    why = ARMS["triglot-paddle-compiled"].why_not(pair, "generation", "bfloat16", "cpu")
    assert why == "has bfloat16 in its inference engine alone, which does not generate"
    assert ARMS["triglot-paddle-compiled"].why_not(encoder, "forward", "float16", "cpu") == "has no float16 here"
    assert ARMS["onnxruntime"].why_not(encoder, "forward", "float32", "cuda") == "does not run on cuda here"
    assert ARMS["triglot-torch-jit"].why_not(encoder, "training", "float32", "cpu") is None
    for arm, config, dtype, reason in (
        ("triglot-torch-eager", recipe("multihead-tiny"), "float32", "attention alone has no loss"),
        ("onnxruntime", encoder, "float32", "is compiled with its weights, so it does not train"),
        ("triglot-jax-eager", encoder, "float32", "JAX compiles its training in every mode: see triglot-jax-jit"),
        ("triglot-torch-eager", encoder, "bfloat16", "trains in float32 and float64 alone"),
    ):
        for workload in arms.TRAINS:
            assert ARMS[arm].why_not(config, workload, dtype, "cpu") == reason
    monkeypatch.setattr(arms.importlib.util, "find_spec", lambda name: None)
    assert ARMS["nnx"].why_not(encoder, "forward", "float32", "cpu") == "jax, flax, optax not installed"


def test_which_arms_take_part():
    assert arms.selected([], [], []) == list(ARMS)
    assert arms.selected(["paddle"], ["compiled"], []) == ["triglot-paddle-compiled"]
    assert arms.selected([], [], ["nnx", "torch-nn"]) == ["torch-nn", "nnx"]
    with pytest.raises(FrameworkError, match=r"^unknown arm 'caffe'; expected one of triglot-torch-eager, "):
        arms.selected([], [], ["caffe"])
    with pytest.raises(
        FrameworkError,
        match=r"^there is no arm for jax and compiled; ask for less, or for one of triglot-torch-eager, ",
    ):
        arms.selected(["jax"], ["compiled"], [])


def test_every_framework_and_mode_has_an_arm():
    ours = {(arm.framework, arm.mode) for arm in ARMS.values() if not arm.peer}
    assert ours == {(name, mode) for name in impls.FRAMEWORKS for mode in impls.MODES} - {("jax", "compiled")}


def test_cases_span_every_combination_and_are_told_apart():
    options = {"batches": [4, 1], "lengths": [16, 8], "fills": [0.5, 1.0], "dtypes": ["float32"], "device": "cpu"}
    spanned = cells("m", "forward", orders=["padded", "sorted"], threads=2, **options)
    assert len(spanned) == len({cell.id for cell in spanned}) == 2 * 2 * 2 + 2 * 2
    for cell in spanned:
        for copy in (0, 1):
            case = Case("nnx", cell, copy)
            assert Case.from_dict(json.loads(json.dumps(case.to_dict()))) == case


@pytest.mark.filterwarnings("ignore")  # theirs, not ours
@pytest.mark.parametrize("name", [name for name, arm in ARMS.items() if arm.peer])
def test_peers_compute_the_same(name, make_checkpoint):
    """The stock encoders with the weights that they were given: one that is wrong would have no speed."""
    checkpoint = make_checkpoint("bert-base-tiny")
    batches = workloads.batches_of(CELL, checkpoint.config, None, 0)
    module, function = ARMS[name].builder.split(":")
    builder = getattr(importlib.import_module(f"triglot.bench.{module}"), function)
    prepared = builder(checkpoint, Case(name, CELL), batches)
    results = prepared.call()
    prepared.wait(results)
    outputs = prepared.outputs(results)
    assert outputs.keys() == {"output", "pooler"}
    found = Expectation(checkpoint, batches[0], "float32").judge(outputs)
    assert found.verdict == "pass", found


FIELDS = {
    *("id", "arm", "model", "workload", "order", "framework", "mode", "dtype", "device", "batch", "length", "fill"),
    *("threads", "status", "failure", "latency_ms", "tokens_per_second", "sequences_per_second", "useful_gflops"),
    *(
        "flops_per_byte",
        "import_s",
        "roofline_fraction",
        "load_s",
        "compile_s",
        "peak_rss_mb",
        "peak_device_mb",
        "parity",
        "samples_ms",
    ),
}


def test_the_report_has_its_fields_and_a_sweep_is_gone_on_with(workplace, command, monkeypatch):
    monkeypatch.setattr(roofline, "measure", lambda *_: {**NO_ROOFLINE, "gflops": 300.0, "copy_gb_per_s": 30.0})
    monkeypatch.setattr(benchmark, "WORKER", FAKES)
    asked = ("bench", "bert-base-tiny", "--arm", "triglot-torch-eager", *SHORT, "--json", "bench.json")
    code, out, err = command(*asked, "--markdown", "bench.md")
    assert (code, err) == (0, "")
    assert "triglot-torch-eager" in out
    first = json.loads(Path("bench.json").read_text())
    assert first["schema"] == "triglot.bench/1"
    assert {"environment", "roofline", "cases", "ratios"} <= first.keys()
    case = first["cases"][0]
    assert case.keys() >= FIELDS
    assert case["roofline_fraction"] == case["useful_gflops"] / 300
    assert case["latency_ms"].keys() == {"p50", "p90", "p99", "min", "mean"}
    assert case["latency_ms"]["p50"] == float(np.median(case["samples_ms"]))
    assert sum(case["round_lengths"]) == len(case["samples_ms"])
    assert "| triglot-torch-eager | pass |" in Path("bench.md").read_text()

    code, _, err = command(*asked, "--arm", "triglot-jax-jit", "--resume", "--quiet")
    assert (code, err) == (0, "")
    second = json.loads(Path("bench.json").read_text())
    by_id = {case["id"]: case for case in second["cases"]}
    assert by_id[case["id"]]["samples_ms"] == case["samples_ms"], "what was there is not timed again"
    assert [one for one in second["ratios"] if one.get("again")] == first["ratios"]
    assert second["noise_floor"] == first["noise_floor"] > 0
    assert {one["a"].split("/")[0]: one["b"] for one in second["ratios"]}["triglot-jax-jit"] == case["id"]
    # What is not asked for now is kept, and what was measured in another way is not lost.
    code, _, err = command(*asked[:2], "--arm", "triglot-paddle-eager", *asked[4:], "--resume", "--quiet")
    assert (code, err) == (0, "")
    third = json.loads(Path("bench.json").read_text())
    arms_timed = {one["arm"] for one in third["cases"]}
    assert arms_timed == {"triglot-torch-eager", "triglot-jax-jit", "triglot-paddle-eager"}
    assert {one["id"]: one for one in third["cases"]}[case["id"]]["samples_ms"] == case["samples_ms"]
    code, out, err = command(*asked, "--seed", "1", "--resume", "--quiet")
    assert (code, out) == (2, "")
    assert err == "triglot: the file to complete was measured with seed 0, not 1; write another file\n"
    monkeypatch.setattr(benchmark, "code", lambda: "other")
    code, _, err = command(*asked, "--resume", "--quiet")
    assert code == 2
    assert "is not asked for, and was measured with other code, weights or packages; write another file" in err
    assert json.loads(Path("bench.json").read_text()) == third


def test_several_models_are_timed_in_turn(workplace, command, monkeypatch):
    """Each in cells of its own; one that is asked for later is added to what is there."""
    monkeypatch.setattr(roofline, "measure", lambda *_: NO_ROOFLINE)
    monkeypatch.setattr(benchmark, "WORKER", FAKES)
    models, asked = (
        ("bert-base-tiny", "translation-tiny"),
        ("--arm", "triglot-paddle-eager", *SHORT[:2], "--length", "12"),
    )
    code, out, err = command("bench", *models, models[0], *asked, *SHORT[4:], "--length", "30", "--json", "bench.json")
    assert (code, err) == (0, "")
    found = comparison.read(Path("bench.json"))
    assert list(found["models"]) == list(models)
    for name in models:
        assert found["models"][name]["config"] == recipe(name).to_dict()
        assert f"{name}, forward, batch 2, length 12" in out
    said = {(case["model"], case["length"]): case["status"] for case in found["cases"]}
    assert said == {
        (models[0], 12): "ok",
        (models[0], 30): "ok",
        (models[1], 12): "ok",
        (models[1], 30): "skipped",  # it is over the maximum of that one
    }
    code, _, err = command("bench", models[0], *asked, *SHORT[4:], "--json", "bench.json", "--resume")
    assert code == 2
    assert "has translation-tiny, which is not asked for; ask for it, or write another" in err
    more = ("bench", *models, "minilm-tiny", *asked, *SHORT[4:], "--json", "bench.json", "--resume", "--quiet")
    assert command(*more) == (0, "", "")
    again = comparison.read(Path("bench.json"))
    assert list(again["models"]) == [*models, "minilm-tiny"]
    kept = {case["id"]: case for case in again["cases"] if case["model"] in models}
    assert kept == {case["id"]: case for case in found["cases"]}


def test_ctrl_c_names_no_file_that_was_there_before(workplace, capsys):
    """It has what another run measured, and --resume may refuse it."""
    Path("bench.json").write_text("{}")
    for there, told in ((True, "triglot: bench.json has what was timed; go on with --resume\n"), (False, "")):
        with pytest.raises(KeyboardInterrupt), Kept(Path("bench.json"), there=there):
            raise KeyboardInterrupt
        assert capsys.readouterr().err == told
    kept = Kept(Path("bench.json"), there=False)
    kept.write({})
    with pytest.raises(KeyboardInterrupt), kept:
        raise KeyboardInterrupt
    assert capsys.readouterr().err.startswith("triglot: bench.json has what was timed")


def test_ctrl_c_leaves_a_file_to_go_on_with_and_no_process(workplace):
    names = [
        "triglot-torch-eager",
        "torch-nn",
        "triglot-jax-jit",
        "triglot-paddle-eager",
        "nnx",
        "transformers-eager",
    ]
    chosen = [part for name in names for part in ("--arm", name)]
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "triglot", "bench", "bert-base-tiny", *chosen, *SHORT, "--json", "bench.json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while not Path("bench.json").exists():
        assert process.poll() is None
        assert time.monotonic() < deadline, "nothing was written"
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    told = "triglot: bench.json has what was timed; go on with --resume\ntriglot: interrupted\n"
    assert (process.returncode, out, err) == (130, "", told)
    found = comparison.read(Path("bench.json"))
    assert found["roofline"][0]["gflops"] > 1
    assert 0 < len([case for case in found["cases"] if case["status"] == "ok"]) < len(names)
    listed = subprocess.run(["ps", "-o", "args=", "-A"], capture_output=True, text=True, check=True).stdout
    assert str(workplace) not in listed
    assert os.listdir() == ["bench.json"]


def test_a_slowdown_is_found_and_noise_is_not(make_checkpoint, workplace, command, monkeypatch):
    sweep, _ = swept(make_checkpoint, ["triglot-torch-eager", "triglot-paddle-eager"])
    around = {"others": sweep.others, **environment()}
    now = report.to_dict(MODELS, sweep.results, sweep.comparisons, [], around)
    now["noise_floor"] = 0.2
    monkeypatch.setattr(benchmark, "bench", lambda *_, **__: now)
    for factor, expected, verdict in ((0.1, 1, "slower"), (10, 0, "faster"), (1, 0, "same"), (0.9, 0, "same")):
        then = json.loads(json.dumps(now))
        for case in then["cases"]:
            case["samples_ms"] = [sample * factor for sample in case["samples_ms"]]
            case["latency_ms"] = {"p50": float(np.median(case["samples_ms"]))}
        then["models"]["bert-base-tiny"]["weights_digest"] = "another"
        Path("then.json").write_text(json.dumps(then))
        targets = ("--markdown", "now.md", "--html", "now.html")
        code, out, _ = command("bench", "bert-base-tiny", *SAME, "--compare", "then.json", *targets)
        assert (code, out.count(f"  {verdict}")) == (expected, 2), out
        assert Path("now.md").read_text().count(f" | {verdict} |\n") == 2
        assert "\n- also, weights of bert-base-tiny was another, is d\n" in Path("now.md").read_text()
        assert Path("now.html").read_text().count(f">{verdict}</td></tr>") == 2
        assert "Also, weights of bert-base-tiny was another, is d." in Path("now.html").read_text()
        assert "also, weights of bert-base-tiny was another, is d" in out
        found = comparison.changes(then, now)
        assert [change.ratio and change.ratio.median for change in found] == pytest.approx([1 / factor] * 2)
    # What was timed and cannot be any more is no success; nor is a comparison of nothing, or of two models.
    known = MODELS["bert-base-tiny"]
    gone = next(case for case in now["cases"] if case["arm"] == "triglot-paddle-eager")
    gone.update(status="skipped", failure="paddle not installed")
    code, out, _ = command("bench", "bert-base-tiny", *SAME, "--compare", "then.json")
    assert (code, "skipped: paddle not installed" in out, "gone" in out) == (1, True, True)
    monkeypatch.setattr(benchmark, "bench", lambda *_, **__: pytest.fail("nothing is to be timed"))
    for changed, message in (
        (
            {"models": {"bert-base-tiny": {"weights_digest": "d", "config": {**known["config"], "layers": 1}}}},
            "the earlier result is of a bert-base-tiny with another configuration (layers 1, not 2); compare with one "
            "of this model",
        ),
        (
            {"cases": []},
            "none of these cases was timed in the earlier result (it has none, and not "
            f"triglot-torch-eager/{CELL.id}); compare with one of the same cases",
        ),
    ):
        Path("then.json").write_text(json.dumps({**then, **changed}))
        code, _, err = command("bench", "bert-base-tiny", *SAME, "--compare", "then.json")
        assert (code, err) == (2, f"triglot: {message}\n")


def test_a_sweep_in_which_nothing_was_timed_is_no_success(workplace, command, monkeypatch):
    monkeypatch.setattr(roofline, "measure", lambda *_: pytest.fail("there is nothing to measure it for"))
    code, out, err = command("bench", "bert-base-tiny", "--arm", "nnx", "--workload", "generation")
    assert (code, "skipped" in out) == (2, True)
    assert err == "triglot: nothing was timed; nnx: an encoder does not generate\n"


@pytest.mark.parametrize("printed", ["", "hello", "[]", '{"gflops": 1}'])
def test_a_framework_without_a_roofline_is_told_of(printed, monkeypatch):
    """Whatever it prints; the others' count."""
    good = '{"gflops": 5.0, "copy_gb_per_s": 2.0}'

    def run(command, **_):
        return SimpleNamespace(stdout=good if command[-4] == "torch" else printed, stderr="", returncode=0)

    monkeypatch.setattr(roofline.subprocess, "run", run)
    found = roofline.measure(["torch", "paddle"], "float32", "cpu", 1, QUICK)
    assert (found["gflops"], found["copy_gb_per_s"]) == (5.0, 2.0)
    assert found["frameworks"]["paddle"] == {"failure": "exit code 0"}
    assert roofline.fastest(found) == ["torch"]
    assert roofline.fastest({"frameworks": {"paddle": {"failure": "exit code 0"}}}) == []

    def hang(command, timeout, **_):
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(roofline.subprocess, "run", hang)
    hung = roofline.measure(["torch"], "float32", "cpu", 1, QUICK)
    assert (hung["gflops"], hung["frameworks"]) == (None, {"torch": {"failure": "no answer within 6 s"}})
    later = {**found, "gflops": 7.0, "copy_gb_per_s": None}
    assert roofline.better(None, found) == found
    assert {name: roofline.better(found, later)[name] for name in ("gflops", "copy_gb_per_s")} == {
        "gflops": 7.0,
        "copy_gb_per_s": 2.0,
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--arm", "caffe"), "unknown arm 'caffe'; expected one of"),
        (("--length", "1000"), "length 1000 is over the maximum 37 of the model; cut it"),
        (("--fill", "0.01"), "fill 0.01 leaves too few of 8 x 37 tokens"),
        (("--threads", "10000"), "--threads 10000 is over the"),
        (("--seconds", "inf"), "Invalid value for '--seconds'"),
        (("--fill", "nan"), "Invalid value for '--fill'"),
        (("--fill", "0"), "fill 0 is no share; expected more than 0, up to 1"),
        (("--fill", "0.5", "--order", "sorted"), "--fill is for --order padded: sentences are as long as they are"),
        (("--resume",), "--resume completes the file of --json; name a file"),
        (("--compare", "nothing.json"), "cannot read nothing.json: No such file or directory; give a file that"),
        (("--compare", "text.json"), "cannot read text.json: it is no JSON"),
        (("--compare", "list.json"), "list.json is no triglot.bench/1"),
        (("--compare", "part.json"), "part.json lacks a part, or has a wrong one"),
        (("--compare", "floor.json"), "floor.json lacks a part, or has a wrong one: no 'noise_floor'; make it anew"),
        (
            ("--compare", "twice.json"),
            "twice.json lacks a part, or has a wrong one: triglot-torch-eager/min",
        ),
        (("--compare", "none.json"), "none.json lacks a part, or has a wrong one: latency_ms of triglot"),
        (("--compare", "short.json"), "short.json lacks a part, or has a wrong one: samples_ms of triglot"),
        (("--compare", "below.json"), "below.json lacks a part, or has a wrong one: samples_ms of triglot"),
        (("--json", "median.json", "--resume"), "median.json lacks a part, or has a wrong one: latency_ms"),
        (
            ("--json", "null.json", "--resume"),
            "null.json lacks a part, or has a wrong one: a part of the wrong type; make it anew",
        ),
        (("--compare", "models.json"), "models.json lacks a part, or has a wrong one: no 'm'; make it anew"),
        (
            ("--compare", "unlike.json"),
            "unlike.json lacks a part, or has a wrong one: a part of the wrong type; make it anew",
        ),
        (("--json", "b.json", "--markdown", "b.json"), "b.json is to be written twice"),
        (
            ("--mode", "compiled", "--framework", "jax"),
            "there is no arm for jax and compiled; ask for less, or for one of triglot-torch-eager, ",
        ),
    ],
)
def test_what_cannot_be_timed_is_refused_in_one_line(arguments, message, workplace, command):
    Path("text.json").write_text("no")
    Path("list.json").write_text("[]")
    kept = json.loads(next((ROOT / "bench" / "results").glob("*-bench.json")).read_text())
    Path("floor.json").write_text(json.dumps({name: value for name, value in kept.items() if name != "noise_floor"}))
    for name, changed in (
        ("twice", {"cases": [*kept["cases"], kept["cases"][0]]}),
        ("none", {"cases": [{**kept["cases"][0], "samples_ms": [], "round_lengths": []}]}),
        ("short", {"cases": [{**kept["cases"][0], "samples_ms": kept["cases"][0]["samples_ms"][1:]}]}),
        ("below", {"cases": [{**kept["cases"][0], "samples_ms": [-1.0], "round_lengths": [1]}]}),
        ("median", {"cases": [{**kept["cases"][0], "latency_ms": {"p50": 1.0}}]}),
        ("null", {"cases": [{**kept["cases"][0], "latency_ms": None}]}),
    ):
        Path(f"{name}.json").write_text(json.dumps({**kept, **changed}))
    kept["cases"][0]["model"] = "m"
    Path("models.json").write_text(json.dumps(kept))
    Path("unlike.json").write_text(json.dumps({**kept, "models": ["m"]}))
    Path("part.json").write_text('{"schema": "triglot.bench/1", "cases": [{}]}')
    code, out, err = command("bench", "bert-base-tiny", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"triglot: {message}")
    assert err.count("\n") == 1


def test_a_cell_that_does_not_fit_is_a_row(workplace, command, monkeypatch):
    monkeypatch.setattr(roofline, "measure", lambda *_: NO_ROOFLINE)
    monkeypatch.setattr(benchmark, "WORKER", FAKES)
    asked = ("bench", "bert-base-tiny", "--arm", "triglot-torch-eager", *SHORT, "--batch", "1", "--fill", "0.6")
    code, out, _ = command(*asked, "--json", "bench.json", "--markdown", "bench.md")
    assert code == 0
    unfit, fit = json.loads(Path("bench.json").read_text())["cases"][:2]
    assert (unfit["batch"], unfit["status"], fit["batch"], fit["status"]) == (1, "skipped", 2, "ok")
    assert unfit["failure"].startswith("fill 0.6 leaves too few of 1 x 8 tokens")
    assert "triglot-torch-eager skipped: fill 0.6 leaves too few" in out
    # Columns in which nothing stands are not shown.
    _, first, second = Path("bench.md").read_text().split("| arm |")
    assert "ms" not in first.splitlines()[0]
    assert "| ms | tokens/s |" in second.splitlines()[0]
    assert "of roofline" not in second


def test_weights_that_do_not_fit_a_dtype_are_a_row(workplace, command, make_checkpoint, monkeypatch):
    """And the sweep goes on, with the next dtype and the next model."""
    monkeypatch.setattr(roofline, "measure", lambda *_: NO_ROOFLINE)
    monkeypatch.setattr(benchmark, "WORKER", FAKES)
    checkpoint = make_checkpoint("bert-base-tiny")
    checkpoint.tensors["embeddings.token.weight"][1, 2] = 7e4
    triglot.save(checkpoint, "large.npz")
    asked = ("--arm", "triglot-torch-eager", *SHORT, "--dtype", "float16", "--dtype", "float32", "--json", "bench.json")
    assert command("bench", "large.npz", "bert-base-tiny", *asked)[0] == 0
    found = json.loads(Path("bench.json").read_text())["cases"]
    timed = [case for case in found if "*" not in case["id"]]
    said = {(case["model"], case["dtype"]): (case["status"], case["failure"]) for case in timed}
    assert said["large.npz", "float16"] == (
        "skipped",
        "embeddings.token.weight holds numbers that do not fit into float16; use dtype float32",
    )
    assert said["large.npz", "float32"] == ("ok", None)
    assert said["bert-base-tiny", "float32"] == ("ok", None)


def test_json_is_printed_once_and_nothing_is_completed_by_it(workplace, command, monkeypatch):
    monkeypatch.setattr(roofline, "measure", lambda *_: NO_ROOFLINE)
    monkeypatch.setattr(benchmark, "WORKER", FAKES)
    asked = ("bench", "bert-base-tiny", "--arm", "triglot-torch-eager", *SHORT, "--json", "-", "--quiet")
    code, out, err = command(*asked)
    assert (code, err) == (0, "")
    assert json.loads(out)["schema"] == "triglot.bench/1"
    assert command(*asked, "--resume") == (2, "", "triglot: --resume completes the file of --json; name a file\n")
    assert os.listdir() == []


def test_the_tokens_of_a_generation_are_counted(make_checkpoint):
    """Those that the model said up to the end of each target, padding too, but not the first, which is given."""
    targets = [[1, 5, 2, 6, 3, 2, 2], [1, 3, 2, 2, 2, 2, 2], [1, 4, 4, 4, 4, 4, 4]]  # 3 is the end, 2 is padding
    assert ours.said(np.array(targets), 3) == 4 + 1 + 6
    checkpoint = make_checkpoint("translation-tiny")
    cell = Cell("m", "generation", "padded", "float32", "cpu", 8, 19, 1.0, 1)
    (batch,) = workloads.batches_of(cell, checkpoint.config, None, 0)
    assert (batch.source[batch.valid] == checkpoint.config.pad_id).any(), "a token like any other, as its batch says"
    sweep = Sweep(checkpoint, ["triglot-torch-eager"], QUICK, tokenizer=None, command=benchmark.WORKER)
    sweep.run(cell)
    assert sweep.results[0].status == "ok", sweep.results[0].failure
    facts = sweep.results[0].facts
    ids = impls.build("numpy", checkpoint).generate(batch.source)
    expected = ids[:, 1:].size  # with random weights, nothing ends
    assert not (ids == checkpoint.config.end_id).any()
    assert facts["tokens_per_second"] == pytest.approx(expected / (facts["latency_ms"]["p50"] / 1000))


def test_a_limit_of_memory_that_has_no_effect_is_refused(workplace, command, monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    code, _, err = command("bench", "bert-base-tiny", "--memory-limit", "1000")
    assert (code, err) == (2, "triglot: --memory-limit has no effect here, on Linux alone; leave it out\n")


def test_the_tables_of_the_readme_are_those_of_the_newest_result():
    results = sorted((ROOT / "bench" / "results").glob("*-bench.json"))
    text = (ROOT / "README.md").read_text()
    assert readme.with_tables(text, results[-1]) == text, "run python -m triglot.bench.readme RESULT README.md"
    with pytest.raises(ValueError, match="there is no <!-- begin"):
        readme.with_tables("no marks", results[-1])


def test_the_public_build_takes_every_mode_an_arm_has(make_checkpoint):
    with pytest.raises(FrameworkError, match="unknown mode 'turbo'"):
        triglot.build("torch", make_checkpoint("bert-base-tiny"), mode="turbo")
