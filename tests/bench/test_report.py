"""What ``triglot bench`` reports: fields, tables, and what has become slower since an earlier result."""

import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from triglot.bench.machine import roofline
from triglot.bench.report import comparison, readme, report
from triglot.bench.run import benchmark
from triglot.bench.run.cases import Cell
from triglot.bench.run.settings import Settings
from triglot.shared.environment import cores, environment
from triglot.shared.model.recipes import recipe

ROOT = Path(__file__).parents[2]
SAME = ("--batch", "2", "--length", "8", "--fill", "0.75", "--threads", "1")  # what CELL is
SHORT = ("--batch", "2", "--length", "8", "--seconds", "0.1", "--rounds", "2")
pytestmark = pytest.mark.usefixtures("no_more_rounds")
NO_ROOFLINE = {"dtype": "float32", "device": "cpu", "threads": cores(), "gflops": None, "copy_gb_per_s": None}
NO_ROOFLINE["frameworks"] = {}
QUICK = Settings(seconds=0.05, rounds=3, warm_up=0.2, pause=0, time_limit=6)
MODELS = {"bert-base-tiny": {"weights_digest": "d", "config": recipe("bert-base-tiny").to_dict()}}
CELL = Cell("bert-base-tiny", "forward", "padded", "float32", "cpu", 2, 8, 0.75, 1)


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


def test_the_report_has_its_fields_and_a_sweep_is_gone_on_with(workplace, command, monkeypatch, fakes):
    monkeypatch.setattr(roofline, "measure", lambda *_: {**NO_ROOFLINE, "gflops": 300.0, "copy_gb_per_s": 30.0})
    monkeypatch.setattr(benchmark, "WORKER", fakes)
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


def test_several_models_are_timed_in_turn(workplace, command, monkeypatch, fakes):
    """Each in cells of its own; one that is asked for later is added to what is there."""
    monkeypatch.setattr(roofline, "measure", lambda *_: NO_ROOFLINE)
    monkeypatch.setattr(benchmark, "WORKER", fakes)
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


def test_a_machine_whose_speed_varies_is_said_to(swept):
    swept_once, _ = swept(["triglot-torch-eager", "triglot-paddle-eager"])
    found = report.to_dict(MODELS, swept_once.results, swept_once.comparisons, [], {"others": {}})
    reference = next(case for case in found["cases"] if case["arm"] == "triglot-torch-eager")
    for slow, said in ((1.0, False), (1.1, False), (1.5, True)):
        reference.update(samples_ms=[1.0, 1.01] * 5 + [slow, slow * 1.01] * 5, round_lengths=[2] * 10)
        assert report.unsteadiness(found, CELL.id) == pytest.approx(slow)
        assert ("speed itself varied by a factor of 1.50" in report.notes(found, CELL.id)) == said


def test_what_a_device_says_is_reported(swept):
    sweep, results = swept(["triglot-torch-eager"])
    found = report.to_dict(MODELS, sweep.results, sweep.comparisons, [], {"others": {}})
    assert found["cases"][0]["device_ms"] is None
    assert "GPU" not in report.markdown(found)
    results["triglot-torch-eager"].facts["device_ms"] = {"p50": 0.25}
    found = report.to_dict(MODELS, sweep.results, sweep.comparisons, [], {"others": {}})
    assert " (GPU 0.25) |" in report.markdown(found)
    assert "from its first work to its last, by the clock of the device." in report.markdown(found)


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


def test_a_slowdown_is_found_and_noise_is_not(swept, workplace, command, monkeypatch):
    sweep, _ = swept(["triglot-torch-eager", "triglot-paddle-eager"])
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
        then["environment"]["variables"]["MKL_CBWR"] = "AVX2"
        Path("then.json").write_text(json.dumps(then))
        targets = ("--markdown", "now.md", "--html", "now.html")
        code, out, _ = command("bench", "bert-base-tiny", *SAME, "--compare", "then.json", *targets)
        assert (code, out.count(f"  {verdict}")) == (expected, 2), out
        assert Path("now.md").read_text().count(f" | {verdict} |\n") == 2
        assert "\n- also, weights of bert-base-tiny was another, is d\n" in Path("now.md").read_text()
        assert "\n- also, MKL_CBWR was AVX2, is nothing\n" in Path("now.md").read_text()
        assert Path("now.html").read_text().count(f">{verdict}</td></tr>") == 2
        assert "Also, weights of bert-base-tiny was another, is d." in Path("now.html").read_text()
        assert "also, weights of bert-base-tiny was another, is d" in out
        found = comparison.changes(then, now)
        assert [change.ratio and change.ratio.median for change in found] == pytest.approx([1 / factor] * 2)
    assert command("bench", "bert-base-tiny", *SAME, "--compare", "then.json", "--quiet") == (0, "", "")
    slow = {**then, "cases": [{**case, "samples_ms": [ms / 9 for ms in case["samples_ms"]]} for case in then["cases"]]}
    for case in slow["cases"]:
        case["latency_ms"] = {"p50": float(np.median(case["samples_ms"]))}
    Path("slow.json").write_text(json.dumps(slow))
    code, out, err = command("bench", "bert-base-tiny", *SAME, "--compare", "slow.json", "--quiet")
    assert (code, out, err.count("slower: triglot-"), err.count("\n")) == (1, "", 2, 1)
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


def test_json_is_printed_once_and_nothing_is_completed_by_it(workplace, command, monkeypatch, fakes):
    monkeypatch.setattr(roofline, "measure", lambda *_: NO_ROOFLINE)
    monkeypatch.setattr(benchmark, "WORKER", fakes)
    asked = ("bench", "bert-base-tiny", "--arm", "triglot-torch-eager", *SHORT, "--json", "-")
    code, out, err = command(*asked)
    assert (code, err) == (0, "")
    assert json.loads(out)["schema"] == "triglot.bench/1"
    assert command(*asked, "--resume") == (2, "", "triglot: --resume completes the file of --json; name a file\n")
    assert os.listdir() == []


def test_the_table_of_the_readme_comes_from_the_newest_result():
    results = sorted((ROOT / "bench" / "results").glob("*-bench.json"))
    text = (ROOT / "README.md").read_text()
    assert readme.with_table(text, results[-1]) == text, "run python -m triglot.bench.report.readme RESULT README.md"
    with pytest.raises(ValueError, match="has no <!-- begin"):
        readme.with_table("no marks", results[-1])
