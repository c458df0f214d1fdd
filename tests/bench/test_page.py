"""The page of ``triglot bench --html``: complete, self-contained, and with every number of the report."""

import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from triglot.bench.machine.load import MachineState
from triglot.bench.machine.roofline import Roofline
from triglot.bench.report import document, page, plots
from triglot.bench.report.report import Comparison, ModelRecord, Report, Result, Surroundings
from triglot.bench.report.statistics import Percentiles, Ratio
from triglot.bench.run.cases import Case, Cell
from triglot.parity.report import Judgement
from triglot.shared.environment import environment

ARMS = ("triglot-torch-eager", "torch-nn", "triglot-jax-jit", "onnxruntime", "triglot-paddle-eager")
RESULTS = Path(__file__).parents[2] / "bench" / "results"


def timed(case, generator):
    cell = case.cell
    tokens = cell.batch * cell.length
    latency = 10 * tokens * generator.uniform(0.5, 2)
    result = Result(case, rounds=[[latency / 2, 2 * latency], [latency]], import_s=1.2, load_s=0.3, compile_s=12.5)
    result.latency_ms = Percentiles(latency, latency * 1.2, latency * 1.3, latency * 0.9, latency * 1.05)
    result.tokens_per_second, result.sequences_per_second = 1e3 * tokens / latency, 8 / latency
    result.useful_gflops, result.flops_per_byte, result.peak_rss_mb, result.fill = 90.0, 40.0, 400.0, 1.0
    result.parity = Judgement(name="output", error=1e-6, budget=1e-5, verdict="pass")
    return result


def made(batches=(1, 8), lengths=(16, 128), workload="forward"):
    """A report of a grid, in which one arm failed and one was skipped."""
    generator = np.random.default_rng(0)
    results, comparisons = [], []
    for batch in batches:
        for length in lengths:
            cell = Cell("a <model>", workload, "padded", "float32", "cpu", batch, length, 1.0, 2)
            baseline = Case(ARMS[0], cell)
            results += [timed(Case(arm, cell), generator) for arm in ARMS]
            comparisons += [Comparison(Case(arm, cell).id, baseline.id, Ratio(1.3, 1.2, 1.5)) for arm in ARMS[1:]]
            twin = Case(ARMS[0], cell, is_twin=True)
            comparisons.append(Comparison(twin.id, baseline.id, Ratio(1.0, 0.98, 1.03)))
            results.append(Result(Case("nnx", cell), "failed", "died by signal <SIGSEGV> & left"))
            results.append(Result(Case("paddle-nn", cell), "skipped", "paddle not installed"))
    surroundings = Surroundings(environment(), MachineState([0.1, 0.2, 0.3]))
    roof = Roofline("float32", "cpu", 2, 2048, 380.0, 36.0, {})
    return Report({"a <model>": ModelRecord("f" * 64, {})}, surroundings, [roof], results, comparisons)


class Reader(HTMLParser):
    """The text and headings of a page, its unclosed tags, and everything that a browser would fetch."""

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


@pytest.fixture(scope="module")
def rendered():
    """A report and its page, which takes seconds to draw."""
    report = made()
    return report, page.render(report)


def test_the_page_is_complete_and_needs_no_other_file(rendered):
    report, html = rendered
    reader = Reader(html)
    assert reader.open == []
    assert reader.fetched == []
    assert not re.search(r"url\((?!#)|@import|<script", html)
    text = " ".join(reader.words)
    assert "a <model>" in text
    assert "died by signal <SIGSEGV> & left" in text, "failures are text, not mark-up"
    assert "20 cases were timed" in text
    assert "4 failed; 4 were skipped. Noise floor: up to 3.0%." in text
    for result in report.results:
        if result.latency_ms:
            assert f"{result.latency_ms.p50:.2f}" in text
    assert "1.30 (1.20 to 1.50)" in text
    drawn = re.findall(r"<svg.*?</svg>", html, re.DOTALL)
    # Five plots for each of four cells, and two over each axis for both values of the other one.
    assert len(drawn) == 4 * 5 + 4 * 2
    for svg in drawn:
        ElementTree.fromstring(svg)
    for name in ("Latency", "Throughput", "Ratios", "Roofline", "Memory", "Cold start"):
        assert name in reader.headings


def test_plots_share_no_ids(rendered):
    """Otherwise one plot would be cut by the clip path of another."""
    _, html = rendered
    defined = re.findall(r'\bid="([^"]+)"', html)
    used = re.findall(r'(?:href="#|url\(#)([^")]+)', html)
    assert len(used) > 1000
    assert set(used) <= set(defined)
    assert len(set(defined)) == len(defined)


@pytest.mark.long
def test_plots_without_numbers_are_left_out():
    """A single cell has no curves. A generation has no roofline, and here no throughput."""
    assert "over batch" not in page.render(made((8,), (128,)))
    report = made((1, 8), (16,), "generation")
    for result in report.results:
        result.tokens_per_second = result.useful_gflops = result.flops_per_byte = None
    headings = Reader(page.render(report)).headings
    assert "Roofline" not in headings
    assert "Throughput" not in headings
    assert "Latency" in headings


def test_a_report_in_which_nothing_ran_is_a_page():
    report = made((1,), (16,))
    report.results = [result for result in report.results if result.status != "ok"]
    report.comparisons = []
    assert "died by signal" in page.render(report)


def test_labels_do_not_overlap():
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.6))
    axes = figure.subplots()
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(1, 10)
    axes.set_ylim(1, 1000)
    ends = [(1, value, f"arm {value}", "black") for value in (10, 10.1, 10.2, 990, 991, 995, 1.0)]
    plots._label_ends(axes, 10, ends)
    labels: list[Any] = list(axes.texts)
    heights = sorted(axes.transAxes.inverted().transform(axes.transData.transform(one.xyann))[1] for one in labels)
    assert len(heights) == len(ends)
    assert min(np.diff(heights)) > 0.05
    assert heights[-1] < 1.001


@pytest.mark.long
def test_the_newest_result_is_a_page():
    newest = sorted(RESULTS.glob("*-bench.json"))[-1]
    assert "triglot-torch-eager" in page.render(document.read(newest))


def test_noise_that_was_not_measured_is_not_shown_as_zero():
    report = made((8,), (128,))
    report.comparisons = [comparison for comparison in report.comparisons if not comparison.is_twin]
    html = page.render(report)
    assert "The noise was not measured." in html
    assert "oise floor" not in html


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--html", "there/page.html"), "there/page.html"),
        (("--html", "page.html", "--markdown", "page.html"), "page.html.*twice"),
    ],
)
def test_a_page_that_cannot_be_written_is_refused_before_the_work(arguments, words, workplace, command):
    code, out, err = command("bench", "bert-base-tiny", *arguments)
    assert (code, out) == (2, "")
    assert re.search(words, err)


def test_a_page_needs_its_libraries(workplace, command, monkeypatch):
    monkeypatch.setattr(page.importlib.util, "find_spec", lambda name: None)
    code, _, err = command("bench", "bert-base-tiny", "--html", "page.html")
    assert code == 2
    assert "matplotlib and jinja2; install triglot[report]" in err
