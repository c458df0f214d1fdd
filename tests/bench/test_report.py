"""The report of ``triglot bench``: its JSON, its tables, and what has become slower since an earlier one."""

import copy
import json
import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from triglot.bench.machine import roofline
from triglot.bench.machine.roofline import FrameworkSpeed, Roofline
from triglot.bench.report import comparison, document, readme, tables
from triglot.bench.report.report import Comparison, ModelRecord, Report, Result, Status, Surroundings
from triglot.bench.report.statistics import Percentiles, Ratio
from triglot.bench.run import sweep as sweep_module
from triglot.bench.run.cases import Case, Cell, Settings
from triglot.parity.report import Judgement
from triglot.shared.environment import cores, environment
from triglot.shared.errors import BenchError
from triglot.shared.model.recipes import recipe

ROOT = Path(__file__).parents[2]
SHORT = ("--batch", "2", "--length", "8", "--seconds", "0.1", "--rounds", "2")
CELL = Cell("bert-base-tiny", "forward", "padded", "float32", "cpu", 2, 8, 0.75, 1)
OPTIONS_OF_CELL = ("--batch", "2", "--length", "8", "--fill", "0.75", "--threads", "1")
NO_ROOFLINE = Roofline("float32", "cpu", cores(), 2048, None, None, {})
MODELS = {"bert-base-tiny": ModelRecord("d", recipe("bert-base-tiny").to_dict())}
CASE_FIELDS = {
    *("id", "arm", "model", "workload", "order", "framework", "mode", "dtype", "device", "batch", "length", "fill"),
    *("threads", "status", "failure", "latency_ms", "tokens_per_second", "sequences_per_second", "useful_gflops"),
    *("flops_per_byte", "import_s", "roofline_fraction", "load_s", "compile_s", "peak_rss_mb", "peak_device_mb"),
    *("parity", "samples_ms", "round_lengths", "device_ms", "processors_used", "warm_up_calls", "digest"),
}
pytestmark = pytest.mark.usefixtures("no_more_rounds")


def report_of(sweep):
    return Report(
        MODELS, Surroundings(environment(), others=sweep.surroundings.others), [], sweep.results, sweep.comparisons
    )


def result_of(arm, milliseconds, status: Status = "ok"):
    result = Result(Case(arm, CELL), status, "" if status == "ok" else "died", [[milliseconds]])
    result.latency_ms = Percentiles(*[milliseconds] * 5)
    result.parity = Judgement(name="output", verdict="pass")
    result.useful_gflops = 30.0
    return result


def test_the_json_has_its_fields(workplace, command, monkeypatch, fakes):
    monkeypatch.setattr(roofline, "measure", lambda *_: replace(NO_ROOFLINE, gflops=300.0, copy_gb_per_s=30.0))
    monkeypatch.setattr(sweep_module, "WORKER", fakes)
    options = ("--arm", "fake-a", *SHORT, "--json", "bench.json", "--markdown", "bench.md")
    code, out, err = command("bench", "bert-base-tiny", *options)
    assert (code, err) == (0, "")
    assert "fake-a" in out
    content = json.loads(Path("bench.json").read_text())
    assert content["schema"] == "triglot.bench/1"
    assert {"models", "environment", "roofline", "noise_floor", "cases", "ratios"} <= content.keys()
    case = content["cases"][0]
    assert case.keys() >= CASE_FIELDS
    assert case["roofline_fraction"] == case["useful_gflops"] / 300
    assert case["latency_ms"].keys() == {"p50", "p90", "p99", "min", "mean"}
    assert case["latency_ms"]["p50"] == float(np.median(case["samples_ms"]))
    assert sum(case["round_lengths"]) == len(case["samples_ms"])
    assert "| fake-a | pass |" in Path("bench.md").read_text()


@pytest.mark.parametrize("path", sorted((ROOT / "bench" / "results").glob("*-bench.json")), ids=lambda path: path.name)
def test_a_report_survives_reading_and_writing(path):
    content = json.loads(path.read_text())
    assert document.to_json(document.read(path)) == content


def test_a_report_keeps_the_processes_of_the_rounds():
    results = [result_of("triglot-torch-eager", 1.0), result_of("torch-nn", 1.0)]
    results[1].rounds, results[1].processes = [[1.0], [1.0], [1.0]], [0, 0, 1]
    content = document.to_json(Report(MODELS, Surroundings(environment()), [], results, []))
    read = document.from_json(json.loads(json.dumps(content)))
    assert [result.processes for result in read.results] == [[0], [0, 0, 1]]
    content["cases"][1]["round_processes"] = [0, 1]
    with pytest.raises(ValueError, match=r"round_processes of torch-nn.* does not match"):
        document.from_json(content)


@pytest.mark.long
def test_several_models_have_cells_of_their_own(workplace, command, monkeypatch, fakes):
    """A model that is asked for later is added to the report."""
    monkeypatch.setattr(roofline, "measure", lambda *_: NO_ROOFLINE)
    monkeypatch.setattr(sweep_module, "WORKER", fakes)
    models = ("bert-base-tiny", "translation-tiny")
    options = ("--arm", "fake-b", "--batch", "2", "--length", "12", "--seconds", "0.1", "--rounds", "2")
    code, out, err = command("bench", *models, models[0], *options, "--length", "30", "--json", "bench.json")
    assert (code, err) == (0, "")
    first = json.loads(Path("bench.json").read_text())
    for name in models:
        assert first["models"][name]["config"] == recipe(name).to_dict()
        assert f"{name}, forward, batch 2, length 12" in out
    statuses = {(case["model"], case["length"]): case["status"] for case in first["cases"]}
    assert statuses == {
        (models[0], 12): "ok",
        (models[0], 30): "ok",
        (models[1], 12): "ok",
        (models[1], 30): "skipped",  # longer than this model allows
    }
    code, _, err = command("bench", models[0], *options, "--json", "bench.json", "--resume")
    assert code == 2
    assert "translation-tiny, which is not asked for" in err
    more = ("bench", *models, "minilm-tiny", *options, "--json", "bench.json", "--resume", "--quiet")
    assert command(*more) == (0, "", "")
    second = json.loads(Path("bench.json").read_text())
    assert list(second["models"]) == [*models, "minilm-tiny"]
    second_cases = {case["id"]: case for case in second["cases"] if case["model"] in models}
    assert second_cases == {case["id"]: case for case in first["cases"]}


@pytest.mark.parametrize(
    ("slow", "processes", "expected", "note"),
    [
        (1.1, [0] * 10, 1.1, None),
        (1.5, [0] * 10, 1.5, "varied by a factor of 1.50 .*Trust the ratios"),
        (2.5, [0] * 10, 2.5, "varied by a factor of 2.50 .*too much to rank arms"),
        (1.5, [0] * 5 + [1] * 5, 1.0, None),
    ],
)
def test_an_unsteady_machine_is_noted(slow, processes, expected, note):
    """The speed of a whole process says nothing about the machine: two processes differ on a steady machine too."""
    baseline = result_of("triglot-torch-eager", 1.0)
    baseline.rounds = [[1.0, 1.01]] * 5 + [[slow, slow * 1.01]] * 5
    baseline.processes = processes
    comparisons = [Comparison(Case("torch-nn", CELL).id, baseline.case.id, Ratio(2.0, 1.9, 2.1))]
    report = Report(MODELS, Surroundings({}), [], [baseline, result_of("torch-nn", 2.0)], comparisons)
    (table,) = report.tables()
    assert table.unsteadiness == pytest.approx(expected)
    found = re.search(note or "varied", " ".join(tables.notes(table, report.surroundings)))
    assert (found is None) == (note is None)


def test_the_clock_of_a_device_is_reported():
    result = result_of("triglot-torch-eager", 1.0)
    report = Report(MODELS, Surroundings({}), [], [result], [])
    assert "GPU" not in tables.markdown(report)
    assert document.to_json(report)["cases"][0]["device_ms"] is None
    result.device_ms = Percentiles(*[0.25] * 5)
    assert " (GPU 0.25) |" in tables.markdown(report)
    assert "by the clock of the device" in tables.markdown(report)
    assert document.to_json(report)["cases"][0]["device_ms"]["p50"] == 0.25


def test_a_share_is_of_the_roofline_with_the_same_threads():
    one, two = (Roofline("float32", "cpu", threads, 2048, 300.0 * threads, 3.0, {}) for threads in (1, 2))
    result = result_of("torch-nn", 5.0)
    assert Report(MODELS, Surroundings({}), [two, one], [result], []).roofline_share(result) == 0.1
    assert Report(MODELS, Surroundings({}), [two], [result], []).roofline_share(result) is None


def test_ratios_to_a_dead_baseline_are_not_mixed_with_others():
    """Every shown ratio is relative to the baseline in the note. Rows without one are placed by their latency."""
    dead, unpaired, baseline, paired = ("triglot-torch-eager", "torch-nn", "triglot-paddle-eager", "paddle-nn")
    results = [
        result_of(dead, 10.0, "failed"),
        result_of(unpaired, 20.0),
        result_of(baseline, 100.0),
        result_of(paired, 50.0),
    ]
    comparisons = [
        Comparison(Case(unpaired, CELL).id, Case(dead, CELL).id, Ratio(2.0, 1.9, 2.1)),
        Comparison(Case(paired, CELL).id, Case(baseline, CELL).id, Ratio(0.5, 0.4, 0.6)),
    ]
    report = Report(MODELS, Surroundings({}), [], results, comparisons)
    (table,) = report.tables()
    assert [row.result.case.arm for row in table.rows] == [unpaired, paired, baseline, dead]
    assert [tables.cells(row)["times the baseline"] for row in table.rows] == ["", "0.50 (0.40 to 0.60)", "1", ""]
    notes = " ".join(tables.notes(table, report.surroundings))
    assert f"relative to {baseline}" in notes
    headings, _ = tables.used_columns(table)
    assert headings[:4] == ["arm", "parity", f"times {baseline}", "ms per batch"]
    assert "only in the JSON" in notes


@pytest.mark.parametrize("printed", ["", "hello", "[]", '{"gflops": 1}'])
def test_a_framework_without_a_roofline_is_recorded(printed, monkeypatch):
    """Whatever it prints. The other frameworks count."""
    settings = Settings(time_limit=6)
    good = '{"gflops": 5.0, "copy_gb_per_s": 2.0}'

    def run(command, **_):
        return SimpleNamespace(stdout=good if command[-4] == "torch" else printed, stderr="", returncode=0)

    monkeypatch.setattr(roofline.subprocess, "run", run)
    measured = roofline.measure(["torch", "paddle"], "float32", "cpu", 1, settings)
    assert (measured.gflops, measured.copy_gb_per_s) == (5.0, 2.0)
    assert measured.frameworks["paddle"] == FrameworkSpeed(failure="exit code 0")
    assert measured.fastest() == ["torch"]
    assert replace(measured, frameworks={"paddle": FrameworkSpeed(failure="exit code 0")}).fastest() == []

    def hang(command, timeout, **_):
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(roofline.subprocess, "run", hang)
    hung = roofline.measure(["torch"], "float32", "cpu", 1, settings)
    assert (hung.gflops, hung.frameworks) == (None, {"torch": FrameworkSpeed(failure="no answer within 6 s")})
    later = replace(measured, gflops=7.0, copy_gb_per_s=None)
    assert measured.combined_with(None) == measured
    assert (later.combined_with(measured).gflops, later.combined_with(measured).copy_gb_per_s) == (7.0, 2.0)


@pytest.fixture
def now(swept, monkeypatch):
    """A report of two arms, which ``triglot bench`` returns without measuring."""
    sweep, _ = swept(["fake-a", "fake-b"])
    report = report_of(sweep)
    monkeypatch.setattr(sweep_module.Sweep, "run", lambda *_, **__: report)
    return report


def write_scaled(report, factor, path):
    """Write a report in which every time is multiplied by ``factor``, with other weights and a variable."""
    content = json.loads(json.dumps(document.to_json(report)))
    for case in content["cases"]:
        case["samples_ms"] = [sample * factor for sample in case["samples_ms"]]
        case["latency_ms"] = {name: value * factor for name, value in case["latency_ms"].items()}
    content["models"]["bert-base-tiny"]["weights_digest"] = "another"
    content["environment"]["variables"]["MKL_CBWR"] = "AVX2"
    Path(path).write_text(json.dumps(content))
    return content


def compare(command, *options):
    arms = ("--arm", "fake-a", "--arm", "fake-b")
    return command("bench", "bert-base-tiny", *OPTIONS_OF_CELL, *arms, "--compare", "then.json", *options)


def test_instructions_are_compared_only_if_both_reports_have_them(now):
    def measured_with(instructions):
        environment = {**now.surroundings.environment, "instructions": instructions}
        return replace(now, surroundings=replace(now.surroundings, environment=environment))

    pairs = (None, "avx2"), ("avx2", None), ("avx2", "avx2, avx512f")
    changes = [comparison.compare(measured_with(old), measured_with(new)) for old, new in pairs]
    assert [each.differences for each in changes] == [[], [], ["instructions was avx2, is avx2, avx512f"]]


@pytest.mark.long(factor=0.9)
@pytest.mark.parametrize(
    ("factor", "code", "verdict"), [(0.1, 1, "slower"), (10, 0, "faster"), (1, 0, "same"), (0.9, 0, "same")]
)
def test_a_slowdown_is_found_and_noise_is_not(factor, code, verdict, now, workplace, command):
    twin = next(ratio for ratio in now.comparisons if ratio.is_twin)
    now.comparisons = [*now.comparisons, replace(twin, ratio=Ratio(1.0, 0.8, 1.2))]  # a noise floor of 20%
    write_scaled(now, factor, "then.json")
    exit_code, out, _ = compare(command, "--markdown", "now.md", "--html", "now.html")
    assert (exit_code, out.count(f"  {verdict}")) == (code, 2)
    assert Path("now.md").read_text().count(f" | {verdict} |\n") == 2
    assert Path("now.html").read_text().count(f">{verdict}</td></tr>") == 2
    for text in (out, Path("now.md").read_text(), Path("now.html").read_text()):
        assert "weights of bert-base-tiny was another, is d" in text
        assert "MKL_CBWR was AVX2, is not set" in text
    changes = comparison.compare(document.read(Path("then.json")), now).cases
    assert [change.ratio and change.ratio.median for change in changes] == pytest.approx([1 / factor] * 2)
    code, out, err = compare(command, "--quiet")
    assert out == ""
    assert err.count("slower: fake-") == (2 if verdict == "slower" else 0)


def test_a_slowdown_among_processes_that_differ_is_found(now):
    """The intervals cover how much processes differ, so the noise floor must not count it a second time."""
    generator = np.random.default_rng(0)
    twin = next(ratio for ratio in now.comparisons if ratio.is_twin)
    now.comparisons = [replace(twin, ratio=Ratio(1.0, 0.8, 1.25))]
    earlier = copy.deepcopy(now)
    for report, level in ((now, 1.2), (earlier, 1.0)):
        for result in report.results:
            result.processes = [number // 8 for number in range(40)]
            of_processes = generator.lognormal(np.log(level), 0.03, 5)
            result.rounds = [[float(of_processes[process])] for process in result.processes]
    assert {change.verdict for change in comparison.compare(earlier, now).cases} == {"slower"}
    assert {change.verdict for change in comparison.compare(now, now).cases} == {"same"}


@pytest.mark.long
def test_a_case_that_can_no_longer_be_timed_is_a_regression(now, workplace, command):
    write_scaled(now, 1, "then.json")
    gone = next(result for result in now.results if result.case.arm == "fake-b")
    gone.status, gone.failure = "skipped", "paddle not installed"
    code, out, _ = compare(command)
    assert (code, "skipped: paddle not installed" in out, "gone" in out) == (1, True, True)


def test_reports_without_common_cases_are_refused_before_the_work(now, workplace, command, monkeypatch):
    content = write_scaled(now, 1, "then.json")
    monkeypatch.setattr(sweep_module.Sweep, "run", lambda *_, **__: pytest.fail("nothing should be timed"))
    config = {**MODELS["bert-base-tiny"].config, "layers": 1}
    changes = ({"models": {"bert-base-tiny": {"weights_digest": "d", "config": config}}}, {"cases": []})
    for change, words in zip(changes, ("layers 1, expected 2", f"nothing, but not fake-a/{CELL.id}"), strict=True):
        Path("then.json").write_text(json.dumps({**content, **change}))
        code, _, err = compare(command)
        assert (code, err.count("\n")) == (2, 1)
        assert words in err


def test_printed_json_cannot_be_resumed(workplace, command, monkeypatch, fakes):
    monkeypatch.setattr(roofline, "measure", lambda *_: NO_ROOFLINE)
    monkeypatch.setattr(sweep_module, "WORKER", fakes)
    options = ("bench", "bert-base-tiny", "--arm", "fake-a", *SHORT, "--json", "-")
    code, out, err = command(*options)
    assert (code, err) == (0, "")
    assert json.loads(out)["schema"] == "triglot.bench/1"
    code, out, err = command(*options, "--resume")
    assert (code, out) == (2, "")
    assert "--resume continues the report in the --json file" in err
    assert os.listdir() == []


def damaged(name, content):
    """The valid report ``content`` with one fault."""
    case = content["cases"][0]
    cases = {
        "twice": [*content["cases"], case],
        "none": [{**case, "samples_ms": [], "round_lengths": [], "round_processes": []}],
        "processes": [{**case, "round_processes": case["round_processes"][1:]}],
        "short": [{**case, "samples_ms": case["samples_ms"][1:]}],
        "below": [{**case, "samples_ms": [-1.0], "round_lengths": [1]}],
        "median": [{**case, "latency_ms": {**case["latency_ms"], "p50": 1.0}}],
        "null": [{**case, "latency_ms": None}],
        "arm": [{**case, "arm": "caffe"}],
        "model": [{**case, "model": "m"}],
    }
    if name in cases:
        return {**content, "cases": cases[name]}
    if name == "floor":
        return {key: value for key, value in content.items() if key != "noise_floor"}
    return {"list": [], "models": {**content, "models": ["m"]}, "part": {"schema": document.SCHEMA, "cases": [{}]}}[
        name
    ]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("list", "is not a triglot.bench/1 report"),
        ("part", "is missing"),
        ("floor", "'noise_floor' is missing"),
        ("twice", "triglot-torch-eager/.*occurs twice"),
        ("none", "latency_ms of triglot-.*does not match"),
        ("processes", "round_processes of triglot-.*does not match"),
        ("short", "samples_ms of triglot-.*does not match"),
        ("below", "samples_ms of triglot-.*does not match"),
        ("median", "latency_ms of triglot-.*does not match"),
        ("null", "wrong type"),
        ("arm", "unknown arm 'caffe'"),
        ("model", "'m' is missing"),
        ("models", "wrong type"),
    ],
)
def test_a_damaged_report_is_refused(name, words, workplace):
    content = json.loads(max((ROOT / "bench" / "results").glob("*-bench.json")).read_text())
    Path("bench.json").write_text(json.dumps(damaged(name, content)))
    with pytest.raises(BenchError, match=rf"bench\.json.*{words}"):
        document.read(Path("bench.json"))


def test_the_table_of_the_readme_comes_from_the_newest_result():
    newest = sorted((ROOT / "bench" / "results").glob("*-bench.json"))[-1]
    text = (ROOT / "README.md").read_text()
    assert readme.with_table(text, newest) == text, "run python -m triglot.bench.report.readme RESULT README.md"
    with pytest.raises(ValueError, match="has no <!-- start"):
        readme.with_table("no marks", newest)
