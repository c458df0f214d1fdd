"""``make bench-proof``: when a promise counts as kept, and how slow the slowed arms are."""

import copy
import json
import re
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer

import triglot
from triglot.bench.run.arms import TriglotArm
from triglot.bench.run.cases import Case, Cell
from triglot.bench.studies import plain_comparison, proof
from triglot.shared.model.recipes import recipe

RESULTS = Path(__file__).parents[2] / "bench" / "results"


@pytest.fixture
def result():
    """The last result in the repository."""
    return json.loads(max(RESULTS.glob("*-bench-proof.json")).read_text())


def damaged(result, part, value, count):
    """Return the result with other numbers in the first ``count`` entries of ``part``."""
    other = copy.deepcopy(result)
    for entry in other[part][:count]:
        entry.update(value)
    return other


def broken(result):
    return [name for name, (_, kept) in proof.promises(result).items() if not kept]


def test_the_last_result_records_the_promises_that_it_keeps(result):
    assert len(result["runs"]) == 20
    recorded = {name: tuple(value) for name, value in result["promises"].items()}
    assert proof.promises(result).items() <= recorded.items()


@pytest.mark.parametrize(
    ("part", "value", "count", "name"),
    [
        ("runs", {"again": [1.031, 0.99, 1.05]}, 1, "freed memory kept, the same arm within 3%"),
        ("runs", {"again": [0.969, 0.95, 1.01]}, 1, "freed memory kept, the same arm within 3%"),
        ("runs", {"again": None}, 1, "freed memory kept, the same arm within 3%"),
        ("runs", {"again": [1.02, 1.01, 1.03]}, 3, "freed memory kept, its interval holds 1"),
        ("runs", {"slowed": [1.1, 1.0, 1.2]}, 1, "freed memory kept, a busy wait of 10% is seen"),
        ("runs", {"slow": None}, 3, "freed memory kept, its interval holds 8"),
        ("runs", {"slowed": [1.08, 1.06, 1.09]}, 3, "freed memory kept, its interval holds 1.1"),
        ("runs", {"slow": [8.5, 8.1, 8.9]}, 3, "freed memory kept, its interval holds 8"),
        ("plain", {"ratio": 1.06}, 1, "within 5% of a plain script, 1 x 32"),
        ("plain", {"ratio": 0.94}, 1, "within 5% of a plain script, 1 x 32"),
    ],
)
def test_a_promise_that_is_not_kept_is_noticed(result, part, value, count, name):
    """One run too many breaks the promise; one fewer does not. Every other run has freed memory kept."""
    exact = {"runs": {"again": [1.0, 0.98, 1.02], "slowed": [1.1, 1.08, 1.12], "slow": [8.0, 7.8, 8.2]}}
    ratios = {"nnx": 1.04, "torch-nn": 0.96}
    result["plain"] = [{"arm": arm, "rows": 1, "length": 32, "ratio": ratio} for arm, ratio in ratios.items()]
    whole = damaged(result, "runs", exact["runs"], 20)
    assert broken(damaged(whole, part, value, count - 1)) == []
    assert broken(damaged(whole, part, value, count)) == [name]


@pytest.fixture
def prove(fakes, monkeypatch, workplace):
    """A function that compares fake arms with plain scripts. It returns the exit code and the rows."""
    monkeypatch.setattr(proof, "SIZES", ((2, 8),))
    monkeypatch.setattr(proof, "register_arms", lambda: None)
    for name, value in {"WORKER": fakes, "ROUNDS": 3, "recipe": lambda _: recipe("bert-base-tiny")}.items():
        monkeypatch.setattr(plain_comparison, name, value)

    def run(*arms):
        with pytest.raises(typer.Exit) as end:
            proof.main(Path("proof.json"), runs=0, arm=[*arms])
        return end.value.exit_code, json.loads(Path("proof.json").read_text())["plain"]

    return run


def stub_scripts(monkeypatch, milliseconds):
    """Let every plain script report this time, without a process."""
    monkeypatch.setattr(plain_comparison.PlainScript, "__init__", lambda *_: None)
    monkeypatch.setattr(plain_comparison.PlainScript, "__exit__", lambda *_: None)
    monkeypatch.setattr(plain_comparison.PlainScript, "median", lambda _: milliseconds)


def test_a_ratio_is_the_time_of_the_benchmark_over_that_of_the_script(prove, monkeypatch):
    monkeypatch.setattr(plain_comparison, "PAIRS", 1)
    stub_scripts(monkeypatch, 200.0)
    _, (row,) = prove("fake-a")
    assert 0 < row["bench_ms"] < 100
    assert row["plain_ms"] == 200
    assert row["ratio"] == pytest.approx(row["bench_ms"] / 200)
    assert row["rounds"] == 3


def test_a_plain_script_times_an_arm(tmp_path, make_checkpoint):
    path = tmp_path / "model.npz"
    triglot.save(make_checkpoint("bert-base-tiny"), path)
    case = Case("triglot-torch-eager", Cell("bert-base-tiny", "forward", "padded", "float32", "cpu", 2, 8, 1.0, 1))
    with (tmp_path / "errors.txt").open("w+") as errors:
        with plain_comparison.PlainScript(case, path, errors, time_limit=120) as script:
            begin = time.perf_counter()
            milliseconds = [script.median(), script.median()]
        assert all(0 < each < 1000 * (time.perf_counter() - begin) for each in milliseconds)


@pytest.mark.long(arm="fake-crash")
@pytest.mark.parametrize(
    ("arm", "failure"), [("fake-crash", "died by signal SIGSEGV"), ("fake-killed", "died by signal SIGKILL")]
)
def test_an_arm_that_does_not_start_or_dies_breaks_the_promise(arm, failure, prove, monkeypatch, capsys):
    monkeypatch.setattr(plain_comparison, "PAIRS", 1)
    stub_scripts(monkeypatch, 1.0)
    code, rows = prove("fake-a", arm)
    assert code == 1
    assert "failure" not in rows[0]
    assert rows[1]["ratio"] is None
    assert failure in rows[1]["failure"]
    assert re.search(rf"^NOT KEPT: .*, 2 x 8: [01] of 2, {arm} ", capsys.readouterr().out)


def test_a_plain_script_that_ends_breaks_the_promise(prove):
    """The fake arms are not registered in the process of the script."""
    code, (row,) = prove("fake-a")
    assert (code, row["failure"]) == (1, "its plain script ended with code 1: KeyError: 'fake-a'")


def test_a_plain_script_that_hangs_is_ended(tmp_path, monkeypatch):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nsleep 100\n")  # in a child, which has to be ended too
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    case = Case("torch-nn", Cell("minilm", "forward", "padded", "float32", "cpu", 2, 8, 1.0, 1))
    with (tmp_path / "errors.txt").open("w+") as errors:
        script = plain_comparison.PlainScript(case, tmp_path, errors, time_limit=0.2)
        with script, pytest.raises(triglot.BenchError, match=r"gave no answer in 0\.2 s"):
            script.median()


def test_the_median_of_all_pairs_of_processes_counts(monkeypatch):
    monkeypatch.setattr(plain_comparison, "recipe", lambda _: recipe("bert-base-tiny"))
    ratios = iter([1.2, 0.8, 1.01, 1.0, 1.02])
    monkeypatch.setattr(
        plain_comparison,
        "_compare",
        lambda cases, *_: {case: plain_comparison.Pair(2.0, 1.0, next(ratios)) for case in cases},
    )
    (row,) = plain_comparison.compare_with_plain(["torch-nn"], 2, 8)
    assert (row["ratio"], row["bench_ms"]) == (1.01, 2.0)
    assert row["ratios"] == [1.2, 0.8, 1.01, 1.0, 1.02]


def test_a_proof_of_nothing_is_refused(monkeypatch):
    monkeypatch.setattr(proof, "ARMS", {})
    monkeypatch.setattr(proof, "select", lambda *_: [])
    with pytest.raises(triglot.FrameworkError, match="no arm is installed; install triglot"):
        proof.main(runs=0)


def test_a_harness_that_adds_one_percent_is_noticed(result):
    result["harness"]["matrix product"] = 0.01
    assert "the harness adds under 1%" in broken(result)


def test_the_slowed_arms_are_as_slow_as_documented(monkeypatch):
    """The model moves the clock by ten seconds per call, and each look at the clock by a hundredth of a second."""
    now = [0.0]

    def move(seconds):
        now[0] += seconds
        return now[0]

    monkeypatch.setattr(TriglotArm, "call", lambda _: [move(10.0)])
    monkeypatch.setattr(TriglotArm, "wait", lambda *_: None)
    monkeypatch.setattr(proof, "time", SimpleNamespace(perf_counter=lambda: move(0.01)))
    for arm, ratio in ((object.__new__(proof.WaitingArm), 1.1), (object.__new__(proof.RepeatingArm), 8)):
        before = now[0]
        arm.call()
        assert now[0] - before == pytest.approx(10 * ratio, abs=0.05)
