"""A sweep that is gone on with loses nothing, and a report of odd parts can be read all the same."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from triglot.bench.machine import roofline
from triglot.bench.report import comparison, report
from triglot.bench.report import page as bench_page
from triglot.bench.report.statistics import Ratio
from triglot.bench.run import benchmark
from triglot.bench.run import sweep as sweep_module
from triglot.bench.run.cases import Case, Cell
from triglot.bench.run.results import Comparison, Result
from triglot.bench.run.sweep import Sweep
from triglot.bench.run.workers import Workers
from triglot.shared.environment import cores
from triglot.shared.model.recipes import recipe

FAKES = (sys.executable, "-P", str(Path(__file__).parents[1] / "helpers" / "bench_worker.py"))
SHORT = ("--batch", "2", "--length", "8", "--seconds", "0.1", "--rounds", "2", "--json", "bench.json", "--quiet")
ASKED = ("bench", "bert-base-tiny", *SHORT)
CELL = Cell("bert-base-tiny", "forward", "padded", "float32", "cpu", 2, 8, 0.75, 1)


@pytest.fixture(autouse=True)
def _quick(monkeypatch, no_more_rounds):
    """Workers that compute by the reference, no roofline, and no more rounds than are asked for."""
    measured = {"dtype": "float32", "device": "cpu", "threads": cores(), "gflops": 300.0, "copy_gb_per_s": 3.0}
    monkeypatch.setattr(roofline, "measure", lambda *_: {**measured, "frameworks": {}})
    monkeypatch.setattr(benchmark, "WORKER", FAKES)


def written():
    return comparison.read(Path("bench.json"))


@pytest.mark.parametrize("others", [["triglot-paddle-eager"], ["triglot-paddle-eager", "triglot-jax-jit"]])
def test_a_reference_that_died_is_timed_beside_the_others(others, workplace, command, monkeypatch):
    """They are compared with each other, and where there is one alone, that becomes the reference."""
    chosen = [part for name in ["triglot-torch-eager", *others] for part in ("--arm", name)]
    with monkeypatch.context() as patched:
        dies_in_its_turn(patched, "triglot-torch-eager")
        assert command(*ASKED, *chosen) == (0, "", "")
    first = written()
    assert [one["status"] for one in first["cases"]].count("failed") == 1
    assert ratios() == dict.fromkeys(others[1:], others[0])
    assert first["noise_floor"] is None, "nobody knows it"
    assert command(*ASKED, *chosen, "--resume") == (0, "", "")
    rows = {row["arm"]: row for row in report.rows(written())}
    assert rows[others[0]]["is_reference"]
    assert all(row["ratio"] for name, row in rows.items() if name != others[0])
    assert [one["a"].split("/")[0] for one in written()["ratios"] if one.get("again")] == [f"{others[0]}*"]


def test_what_was_measured_with_other_variables_is_timed_anew(workplace, command, monkeypatch):
    chosen = (*ASKED, "--arm", "triglot-torch-eager", "--markdown", "bench.md")

    def samples(switch, *options):
        monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", switch)
        assert command(*chosen, *options) == (0, "", "")
        assert written()["environment"]["variables"]["NVIDIA_TF32_OVERRIDE"] == switch
        assert f"NVIDIA_TF32_OVERRIDE={switch}" in Path("bench.md").read_text()
        return [case["samples_ms"] for case in written()["cases"]]

    first = samples("0")
    assert samples("0", "--resume") == first
    again = samples("1", "--resume")
    assert all(new != old for new, old in zip(again, first, strict=True))


def dies_in_its_turn(monkeypatch, arm, *, groups=1):
    """Have the first worker of an arm die when it is its turn, in the last of so many groups."""
    sample, take_turns, begun = Workers.sample, Sweep._take_turns, []

    def dies(self, case, seconds):
        if case.arm == arm and not case.copy and len(begun) == groups and case in self._alive:
            os.kill(self._alive[case]._process.pid, signal.SIGSEGV)
        return sample(self, case, seconds)

    monkeypatch.setattr(Workers, "sample", dies)
    monkeypatch.setattr(Sweep, "_take_turns", lambda self, *given: (begun.append(1), take_turns(self, *given))[1])


def ratios():
    return {one["a"].split("/")[0]: one["b"].split("/")[0] for one in written()["ratios"]}


@pytest.mark.parametrize("groups", [1, 2])
def test_what_takes_the_place_of_a_reference_stays(groups, workplace, command, monkeypatch):
    """It died in the first group of three, or in the second: all that comes later is compared with one other."""
    names = [f"triglot-{name}" for name in ("torch-eager", "paddle-eager", "paddle-compiled", "jax-eager", "jax-jit")]
    chosen = [part for name in names for part in ("--arm", name)]
    with monkeypatch.context() as patched:
        dies_in_its_turn(patched, names[0], groups=groups)
        patched.setattr(sweep_module, "beside", lambda *_: 2)
        assert command(*ASKED, *chosen) == (0, "", "")
    earlier = {f"{names[0]}*": names[0], names[1]: names[0]} if groups == 2 else {}
    later = names[3:] if groups == 2 else names[2:]
    base = names[2] if groups == 2 else names[1]
    assert ratios() == {**earlier, **dict.fromkeys(later, base), f"{base}*": base}
    before = ratios()
    assert command(*ASKED, "--arm", base, "--resume") == (0, "", "")
    assert ratios() == before, "what is not asked for keeps its ratios"
    # What was compared with the dead is timed again, as it is: its process was another.
    assert command(*ASKED, *chosen, "--resume") == (0, "", "")
    rows = {row["arm"]: row for row in report.rows(written())}
    assert [name for name, row in rows.items() if not row["ratio"]] == [base]


def test_arms_without_a_ratio_are_timed_again(workplace, command):
    """A reference that died too late for another leaves them; one that is alone needs none."""
    chosen = ("--arm", "triglot-paddle-eager", "--arm", "triglot-jax-jit")
    assert command(*ASKED, *chosen[:2]) == (0, "", "")
    alone = written()
    assert command(*ASKED, *chosen[:2], "--resume") == (0, "", "")
    assert written()["cases"] == alone["cases"]
    busy = {**alone["environment"], "others": dict.fromkeys(alone["environment"]["others"], 1.9)}
    Path("bench.json").write_text(json.dumps({**alone, "environment": busy}))
    assert command(*ASKED, *chosen, "--resume") == (0, "", "")
    found = written()
    assert set(found["environment"]["others"].values()) == {1.9}, "the machine was busy when the first was timed"
    found["ratios"] = []
    Path("bench.json").write_text(json.dumps(found))
    assert command(*ASKED, *chosen, "--resume") == (0, "", "")
    assert ratios() == {"triglot-paddle-eager*": "triglot-paddle-eager", "triglot-jax-jit": "triglot-paddle-eager"}


def test_sentences_are_gone_on_with(workplace, command):
    """By another order, and by another arm against the same reference."""
    eager = ("--arm", "triglot-torch-eager")
    assert command(*ASKED, *eager, "--order", "sorted") == (0, "", "")
    first = written()
    (case,) = [case for case in first["cases"] if "*" not in case["id"]]
    assert 0.5 < case["fill"] < 1
    assert command(*ASKED, *eager, "--order", "arrival", "--resume") == (0, "", "")
    assert command(*ASKED, "--arm", "triglot-paddle-eager", "--order", "sorted", "--resume") == (0, "", "")
    found = {one["id"]: one for one in written()["cases"]}
    assert found[case["id"]] == case
    assert {one["order"] for one in found.values()} == {"sorted", "arrival"}
    (ratio,) = [one for one in written()["ratios"] if one["a"].startswith("triglot-paddle-eager")]
    assert ratio["b"] == case["id"]


def test_what_failed_is_kept_unless_it_is_asked_for_again(workplace, command):
    """Else a wrong arm would be forgotten, and the exit code with it."""
    wrong = ("--arm", "transformers-eager")
    assert command(*ASKED, "--arm", "triglot-torch-eager", *wrong)[0] == 1
    assert command(*ASKED, "--arm", "triglot-paddle-eager", "--resume")[0] == 1
    verdicts = {case["arm"]: case["status"] for case in written()["cases"] if "*" not in case["id"]}
    assert verdicts == {"triglot-torch-eager": "ok", "transformers-eager": "failed", "triglot-paddle-eager": "ok"}
    Path("old.json").write_bytes(Path("bench.json").read_bytes())
    code, _, err = command(*ASKED, *wrong, "--resume", "--compare", "old.json")
    assert (code, err.count("\n")) == (1, 1)
    assert err.startswith("triglot: diverged: transformers-eager/")
    assert [case["arm"] for case in written()["cases"]].count("transformers-eager") == 1


def test_limits_may_change_before_it_is_gone_on_with(workplace, command):
    """Else nobody could give a case that took too long, or too much memory, another try."""
    eager = ("--arm", "triglot-torch-eager")
    assert command(*ASKED, *eager, "--time-limit", "100") == (0, "", "")
    first = written()
    changed = ("--time-limit", "200", "--memory-limit", "4000")
    assert command(*ASKED, *eager, "--arm", "triglot-paddle-eager", *changed, "--resume") == (0, "", "")
    found = {case["id"]: case for case in written()["cases"]}
    assert {**found, **{case["id"]: case for case in first["cases"]}} == found
    code, _, err = command(*ASKED, *eager, "--rounds", "3", "--resume")
    assert (code, err) == (2, "triglot: the file to complete was measured with rounds 2, not 3; write another file\n")


@pytest.mark.parametrize(
    ("model", "arm", "expected"),
    [
        ("translation-tiny", "nnx", (2, "triglot: nothing was timed; nnx: computes BERTs alone\n")),
        ("dygraph-tiny", "triglot-torch-eager", (0, "")),
    ],
)
def test_sentences_that_no_arm_could_read_are_told_of(model, arm, expected, workplace, command):
    """A model without a vocabulary is given vectors, as many as there are words."""
    code, out, err = command("bench", model, "--arm", arm, "--order", "sorted", *SHORT[:-1], "--html", "b.html")
    assert (code, err) == expected
    assert "8 batches of 2 sentences, sorted by length, up to 8 tokens" in out
    assert "sorted by length" in Path("b.html").read_text()


def result(arm, milliseconds, status="ok"):
    facts = {
        "latency_ms": {"p50": milliseconds, "p90": milliseconds},
        "parity": {"verdict": "pass"},
        "useful_gflops": 30.0,
    }
    facts |= {"import_s": 1.0, "load_s": 1.0, "compile_s": 1.0, "peak_rss_mb": 1.0, "tokens_per_second": 1.0}
    return Result(Case(arm, CELL), status, "died" if status != "ok" else "", facts, [[milliseconds]])


def test_a_share_is_of_the_roofline_on_the_same_threads():
    def roof(threads, gflops):
        return {"dtype": "float32", "device": "cpu", "threads": threads, "gflops": gflops}

    found = report.to_dict({}, [result("torch-nn", 5.0)], [], [roof(2, 600.0), roof(1, 300.0)], {})
    assert found["cases"][0]["roofline_fraction"] == 0.1
    assert (
        report.to_dict({}, [result("torch-nn", 5.0)], [], [roof(2, 600.0)], {})["cases"][0]["roofline_fraction"] is None
    )


def test_ratios_to_a_reference_that_died_are_not_mixed_with_others():
    """Rows stand in the order of what they took, and each ratio is to the reference that the note names."""
    arms = ["triglot-torch-eager", "torch-nn", "triglot-paddle-eager", "paddle-nn"]
    cases = [Case(arm, CELL).id for arm in arms]
    results = [
        result(arms[0], 10.0, "failed"),
        result(arms[1], 20.0),
        result(arms[2], 100.0),
        result(arms[3], 50.0),
    ]
    compared = [
        Comparison(cases[1], cases[0], Ratio(2.0, 1.9, 2.1)),
        Comparison(cases[3], cases[2], Ratio(0.5, 0.4, 0.6)),
    ]
    models = {"bert-base-tiny": {"weights_digest": "d", "config": recipe("bert-base-tiny").to_dict()}}
    found = report.to_dict(models, results, compared, [], {"others": {}})
    assert [row["arm"] for row in report.rows(found)] == ["torch-nn", "paddle-nn", "triglot-paddle-eager", arms[0]]
    assert [report.cells(row)[6] for row in report.rows(found)] == ["", "0.50 (0.40 to 0.60)", "1", ""]
    notes = report.notes(found, CELL.id)
    assert notes.startswith("Ratios are to triglot-paddle-eager; under 1 is faster. Those to another reference are")
    assert "torch-nn" in bench_page.page(json.loads(json.dumps(found)))
