"""A sweep: a failed arm becomes a row, and groups share the memory."""

import json
import os
import subprocess

import pytest

from triglot.bench.report import document, tables
from triglot.bench.report.report import ModelRecord, Report, Surroundings
from triglot.bench.report.statistics import Ratio
from triglot.bench.run import pool, work
from triglot.bench.run import sweep as sweep_module
from triglot.bench.run.rounds import ExtraTime
from triglot.shared.model.recipes import recipe
from triglot.shared.worker import Worker

BROKEN = {
    "fake-memory-error": "MemoryError: Unable to allocate 100 TiB",
    "fake-import-error": "ImportError: no module named torchonnx",
    "fake-crash": "died by signal SIGSEGV",
    "fake-killed": "died by signal SIGKILL",
    "fake-exit": "ended with exit code 3",
    "fake-hang": "no answer within 6 s",
    "fake-inaccurate": "output diverged: the error is ",
    "fake-wrong-shape": "output diverged",
    "fake-nan": "output diverged",
}


def worker_processes():
    """The workers that this process started, including those that it does not wait for."""
    listed = subprocess.run(["ps", "-o", "ppid=,args=", "-A"], capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if line.split()[0] == str(os.getpid()) and "fake_arms" in line]


def test_a_failed_arm_is_a_row_and_the_sweep_continues(swept):
    sweep, results = swept(["fake-a", *BROKEN, "fake-b"])
    assert [name for name, result in results.items() if result.status == "ok"] == ["fake-a", "fake-b"]
    for name, reason in BROKEN.items():
        assert results[name].status == "failed"
        assert reason in results[name].failure
    assert {comparison.a.split("/")[0] for comparison in sweep.comparisons} == {"fake-a*", "fake-b"}
    assert worker_processes() == []
    models = {"bert-base-tiny": ModelRecord("d", recipe("bert-base-tiny").to_dict())}
    surroundings = Surroundings({"packages": {}}, others=sweep.surroundings.others)
    report = Report(models, surroundings, [], sweep.results, sweep.comparisons)
    as_json = document.to_json(report)
    assert json.loads(json.dumps(as_json, allow_nan=False)) == as_json
    assert document.to_json(document.from_json(as_json)) == as_json
    peak = results["fake-b"].peak_rss_mb
    assert 0.2 < peak < 300, "a model of a few hundred kilobytes, in an interpreter with NumPy"
    assert [result.case.arm for result in report.diverged] == ["fake-inaccurate", "fake-wrong-shape", "fake-nan"]
    assert "| fake-crash | failed: died by signal SIGSEGV" in tables.markdown(report)


@pytest.mark.long(failing="fake-killed")
@pytest.mark.parametrize("failing", ["fake-crash", "fake-killed"], ids=["when it is built", "later"])
def test_a_baseline_that_fails_is_replaced(failing, swept):
    sweep, results = swept([failing, "fake-a", "fake-b", "fake-c"], together=1, again=False)
    assert results[failing].status == "failed"
    assert [name for name, result in results.items() if result.status == "ok"] == ["fake-a", "fake-b", "fake-c"]
    assert results[sweep.comparisons[-1].b.split("/")[0]].status == "ok"


def test_an_arm_that_takes_too_much_memory_is_a_row(swept):
    for limit, timed in ((1024, 2), (None, 3)):
        _, results = swept(["fake-a", "fake-hoard", "fake-b"], memory_limit_mb=limit, time_limit=60)
        assert [result.status for result in results.values()].count("ok") == timed
        failure = results["fake-hoard"].failure
        assert ("Unable to allocate 1.00 GiB" in failure) == (limit is not None)
        assert ("1024 MiB: raise --memory-limit" in failure) == (limit is not None)
    assert worker_processes() == []


@pytest.mark.long
def test_an_unsteady_machine_is_measured_for_longer(swept, monkeypatch):
    """Up to six times as long, until the intervals are narrow, as long as time remains."""
    for precise, seconds, factor in ((True, 30, 1), (False, 30, 6), (False, 0, 1)):
        monkeypatch.setattr(Ratio, "is_precise", precise)
        monkeypatch.setattr(ExtraTime, "share_of_group", lambda *_, seconds=seconds: seconds)
        sweep, results = swept(["fake-a"])
        assert [len(result.rounds) for result in results.values()] == [factor * 3]
        assert len(sweep.comparisons) == 1  # with its twin


@pytest.mark.long
def test_an_arm_that_fails_on_new_shapes_keeps_its_times(swept):
    """Whether it is the baseline or not."""
    for arms in (["fake-a", "fake-fixed-shapes"], ["fake-fixed-shapes", "fake-a"]):
        sweep, results = swept(arms, order="arrival", again=False)
        failing = results["fake-fixed-shapes"]
        assert (failing.status, failing.new_shapes_ms) == ("ok", None), failing.failure
        assert failing.latency_ms is not None
        assert results["fake-a"].new_shapes_ms is not None
        assert len(sweep.comparisons) == 1
    assert worker_processes() == []


@pytest.mark.long
def test_new_shapes_of_the_baseline_are_timed_after_all_groups(swept, monkeypatch):
    """Until then, the groups are compared with a process that has seen no other shapes."""
    names, requests = {}, []
    send = Worker.send

    def record(self, kind, request):
        names.setdefault(self, request.get("name"))
        requests.append((names[self], kind))
        send(self, kind, request)

    monkeypatch.setattr(Worker, "send", record)
    _, results = swept(["fake-a", "fake-b", "fake-c"], order="arrival", together=1, again=False)
    assert all(result.new_shapes_ms is not None for result in results.values())
    later = requests[requests.index(("fake-a", "new_shapes")) :]
    assert "sample" not in {kind for _, kind in later}


def test_an_interrupt_on_new_shapes_keeps_the_times(swept, monkeypatch):
    def interrupt(self, cases):
        raise KeyboardInterrupt

    monkeypatch.setattr(pool.Workers, "time_new_shapes", interrupt)
    seen = []
    monkeypatch.setattr(sweep_module.Sweep, "time_cells", interrupted(sweep_module.Sweep.time_cells, seen))
    _, results = swept(["fake-a", "fake-b"], order="arrival", again=False)
    assert seen == ["interrupted"]
    assert {name for name, result in results.items() if result.latency_ms} == {"fake-a", "fake-b"}


def interrupted(time_cells, seen):
    """Return ``time_cells`` so that it notes an interrupt, and ends."""

    def run(self):
        try:
            time_cells(self)
        except KeyboardInterrupt:
            seen.append("interrupted")

    return run


def test_large_models_have_fewer_workers_alive():
    sizes = [sweep_module.group_size(mebibytes, 3) for mebibytes in (0, 500, 1800, 2500, 3500, 50_000)]
    assert sizes == [3, 3, 3, 2, 1, 1]
    assert sweep_module.group_size(500, 3, available_mb=1600) == 2
    assert sweep_module.group_size(500, 3, available_mb=100) == 1


@pytest.mark.long
def test_memory_for_judging_is_returned_to_the_system(swept, monkeypatch):
    """For every arm, including those that are wrong, before the next one is built."""
    calls = []
    for module in (pool, work):
        monkeypatch.setattr(module, "return_freed_memory", lambda: calls.append(1))
    swept(["fake-a", "fake-b", "fake-wrong-shape"])
    assert len(calls) == 1 + 4, "once for the truth, and once for each arm and the twin"
