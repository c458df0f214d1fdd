"""The page of ``triglot bench --html``: whole, alone, and with every number of the report."""

import json
import re
import sys
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from triglot.bench.report import page as bench_page
from triglot.bench.report import plots as bench_plots
from triglot.bench.report import report
from triglot.bench.report.statistics import Ratio
from triglot.bench.run.cases import Case, Cell
from triglot.bench.run.results import Comparison, Result
from triglot.shared.environment import environment

ARMS = ("triglot-torch-eager", "torch-nn", "triglot-jax-jit", "onnxruntime", "triglot-paddle-eager")
MODELS = {"a <model>": {"weights_digest": "f" * 64, "config": {}}}
ROOF = {"dtype": "float32", "device": "cpu", "threads": 2, "gflops": 380.0, "copy_gb_per_s": 36.0, "frameworks": {}}


def facts(generator, scale):
    latency = 10 * scale * generator.uniform(0.5, 2)
    return {
        "import_s": 1.2, "load_s": 0.3, "compile_s": 12.5, "peak_rss_mb": 400.0, "peak_device_mb": None,
        "latency_ms": {name: latency * factor for name, factor in
                       (("p50", 1), ("p90", 1.2), ("p99", 1.3), ("min", 0.9), ("mean", 1.05))},
        "tokens_per_second": 1e3 * scale / latency, "sequences_per_second": 8 / latency, "useful_gflops": 90.0,
        "flops_per_byte": 40.0, "parity": {"error": 1e-6, "budget": 1e-5, "verdict": "pass", "name": "output"},
        "processors_used": 2.0, "warm_up_calls": 10, "fill": 1.0,
    }  # fmt: skip


def made(batches=(1, 8), lengths=(16, 128), workload="forward"):
    """A report of a grid, in which one arm failed and one was skipped."""
    generator = np.random.default_rng(0)
    results, comparisons = [], []
    for batch in batches:
        for length in lengths:
            cell = Cell("a <model>", workload, "padded", "float32", "cpu", batch, length, 1.0, 2)
            reference = Case(ARMS[0], cell)
            for arm in ARMS:
                case = Case(arm, cell)
                found = facts(generator, batch * length)
                half = found["latency_ms"]["p50"]
                results.append(Result(case, "ok", "", found, [[half / 2, 2 * half], [half]]))
                if arm != ARMS[0]:
                    comparisons.append(Comparison(case.id, reference.id, Ratio(1.3, 1.2, 1.5)))
            comparisons.append(Comparison(Case(ARMS[0], cell, copy=1).id, reference.id, Ratio(1.0, 0.98, 1.03)))
            results.append(Result(Case("nnx", cell), "failed", "died by signal <SIGSEGV> & left"))
            results.append(Result(Case("paddle-nn", cell), "skipped", "paddle not installed"))
    around = {**environment(), "others": {}, "machine": {"load_average": [0.1, 0.2, 0.3], "frequency_mhz": None}}
    return report.to_dict(MODELS, results, comparisons, [ROOF], around)


class Reader(HTMLParser):
    """What stands on a page: text, tags, and everything that would be fetched."""

    VOID = ("meta", "link", "br", "img", "path", "use", "rect")

    def __init__(self, text):
        super().__init__()
        self.words, self.fetched, self.open, self.headings = [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        if tag not in self.VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href") and not (value or "").startswith("#"):
                self.fetched.append(value)

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("h2", "h3"):
            self.headings.append(data)
        self.words.append(data)


def test_the_page_is_whole_and_needs_nothing_else():
    found = made()
    page = bench_page.page(found)
    read = Reader(page)
    assert read.open == []
    assert read.fetched == []
    assert not re.search(r"url\((?!#)|@import|<script", page)
    text = " ".join(read.words)
    assert "a <model>" in text
    assert "died by signal <SIGSEGV> & left" in text, "what a worker says is text, and no mark-up"
    assert "20 cases were timed" in text
    assert "4 failed; 4 could not take part. Noise floor: 3.0% at most." in text
    for case in found["cases"]:
        if case["status"] == "ok" and "*" not in case["id"]:
            assert f"{case['latency_ms']['p50']:.2f}" in text
    assert "1.30 (1.20 to 1.50)" in text
    drawn = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    # Of each of four cells: latency, ratios, roofline, memory, cold start. Over two batches and two lengths: two each.
    assert len(drawn) == 4 * 5 + 4 * 2
    for svg in drawn:
        ElementTree.fromstring(svg)
    for name in ("Latency", "Throughput", "Ratios", "Roofline", "Memory", "Cold start"):
        assert name in read.headings


def test_names_within_plots_do_not_meet():
    """A clip path of one plot that another one names would cut it."""
    page = bench_page.page(made())
    defined = re.findall(r'\bid="([^"]+)"', page)
    used = re.findall(r'(?:href="#|url\(#)([^")]+)', page)
    assert len(used) > 1000
    assert set(used) <= set(defined)
    assert len(set(defined)) == len(defined)


def test_one_cell_has_no_curves_and_a_generation_no_roofline():
    page = bench_page.page(made((8,), (128,)))
    assert "over batch" not in page
    found = made((1, 8), (16,), "generation")
    for case in found["cases"]:
        case.update(tokens_per_second=None, useful_gflops=None, flops_per_byte=None)
    read = Reader(bench_page.page(found))
    assert "Roofline" not in read.headings
    assert "Throughput" not in read.headings
    assert "Latency" in read.headings


def test_a_report_in_which_nothing_ran_is_a_page():
    found = made((1,), (16,))
    found["cases"] = [case for case in found["cases"] if case["status"] != "ok"]
    found["ratios"] = []
    assert "died by signal" in bench_page.page(found)


def test_labels_do_not_lie_on_each_other():
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.6))
    axes = figure.subplots()
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(1, 10)
    axes.set_ylim(1, 1000)
    ends = [(1, value, f"arm {value}", "black") for value in (10, 10.1, 10.2, 990, 991, 995, 1.0)]
    bench_plots._label_ends(axes, 10, ends)
    places: list[Any] = list(axes.texts)
    heights = sorted(axes.transAxes.inverted().transform(axes.transData.transform(one.xyann))[1] for one in places)
    assert len(heights) == len(ends)
    assert min(np.diff(heights)) > 0.05
    assert heights[-1] < 1.001


def test_a_file_becomes_a_page(workplace, monkeypatch, capsys):
    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["bench_page", *arguments])
        bench_page.main()

    Path("bench.json").write_text(json.dumps(made((8,), (128,))))
    run("bench.json", "page.html")
    assert Path("page.html").read_text() == bench_page.page(made((8,), (128,)))
    other = made((8,), (128,))
    other["cases"][0]["arm"] = "caffe"
    Path("other.json").write_text(json.dumps(other))
    for arguments, message in (
        (["nothing.json", "page.html"], "triglot: cannot read nothing.json: No such file"),
        (
            ["other.json", "page.html"],
            "triglot: other.json lacks a part, or has a wrong one: there is no arm 'caffe'; make it anew",
        ),
        (["bench.json", "there/page.html"], "triglot: cannot write there/page.html"),
        (["bench.json"], "triglot: give a file that bench --json wrote, and a page to write"),
    ):
        with pytest.raises(SystemExit, match="2"):
            run(*arguments)
        assert capsys.readouterr().err.startswith(message)


def test_the_newest_result_is_a_page():
    newest = sorted((Path(__file__).parents[2] / "bench" / "results").glob("*-bench.json"))[-1]
    assert "triglot-torch-eager" in bench_page.page(json.loads(newest.read_text()))


def test_what_was_not_measured_is_not_called_nothing():
    found = made((8,), (128,))
    found["ratios"] = [one for one in found["ratios"] if not one.get("again")]
    found["noise_floor"] = 0.0
    page = bench_page.page(found)
    assert "The noise was not measured." in page
    assert "oise floor" not in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--html", "there/page.html"), "cannot write there/page.html"),
        (("--html", "page.html", "--markdown", "page.html"), "page.html would be written twice"),
    ],
)
def test_a_page_that_cannot_be_written_is_refused_before_the_work(arguments, message, workplace, command):
    code, out, err = command("bench", "bert-base-tiny", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"triglot: {message}")


def test_a_page_needs_its_libraries(workplace, command, monkeypatch):
    monkeypatch.setattr(bench_page.importlib.util, "find_spec", lambda name: None)
    code, _, err = command("bench", "bert-base-tiny", "--html", "page.html")
    assert (code, err) == (
        2,
        "triglot: pages need matplotlib and jinja2, which is not installed; install triglot[report]\n",
    )
