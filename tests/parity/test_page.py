"""The page of a parity report: complete, in one file, and readable by a real browser (``make browser``)."""

import re
from html.parser import HTMLParser

import pytest

from triglot.parity import page
from triglot.parity.report import Divergence, Report, Row, RowVerdict


def row(
    name, check="end_to_end", verdict: RowVerdict = "pass", error: float | None = 1.0, framework="torch", reason=""
):
    return Row(
        name=name,
        error=error,
        noise=1.0,
        budget=None if error is None else 4.0,
        verdict=verdict,
        reason=reason,
        check=check,
        framework=framework,
        mode="eager",
        dtype="float32",
    )


def report(*rows, frameworks=("torch",), **fields):
    return Report(
        "a <model>", "two & more rows", {}, "f" * 64, {"packages": {"torch": "9"}}, frameworks, rows, **fields
    )


class Reader(HTMLParser):
    """The text of a page, the titles and colours of its cells, and whatever a browser would fetch."""

    def __init__(self, html):
        super().__init__()
        self.text, self.cells, self.fetched = "", [], []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.fetched += [value for name, value in attrs if name in ("src", "href")]
        if tag == "td" and "title" in attributes:
            self.cells.append((attributes["title"], attributes["style"]))

    def handle_data(self, data):
        self.text += data


def test_the_page_shows_every_value_and_needs_no_other_file():
    rows = [row(f"encoder.layers.{layer}.{step}") for layer in range(3) for step in ("key", "output")]
    rows += [row("output", verdict="diverged", error=8.0, reason="the error is 2 times the budget <here>")]
    made = report(
        *rows,
        first_divergence={"torch": Divergence("output", "local", "end_to_end")},
        amplification={"encoder.layers.1.key": 2.0, "encoder.layers.1.output": 4.0},
        lacking=("alone.encode",),
        unchecked=("training",),
    )
    html = page.render(made, "triglot parity 'a model' --html page.html")
    reader = Reader(html)
    assert not reader.fetched
    assert not re.search(r"url\(|@import|<script", html)
    assert len(reader.cells) == len(rows)
    for words in ("a <model>: diverged", "two & more rows", "is 2 times the budget <here>", "layer 1", "3.0"):
        assert words in reader.text
    for words in ("float32, mode eager", "not judged: alone.encode", "not checked: training"):
        assert words in reader.text
    assert "triglot parity 'a model' --html page.html" in reader.text


@pytest.mark.parametrize(
    ("shown", "text", "hue"),
    [
        (row("output", error=0.0), "0%", "hsl(130 "),
        (row("output", error=4.0), "100%", "hsl(55 "),
        (row("output", verdict="diverged", error=4.1), "102%", "hsl(0 "),
        (row("output", verdict="diverged", error=4e6), "1,000,000x", "hsl(0 "),
        (row("output", verdict="diverged", error=None, reason="NaN"), "!", "#b91c1c"),
        (row("output", verdict="skipped", error=None, reason="overflow"), "-", "#e5e7eb"),
    ],
)
def test_a_cell_shows_the_share_of_the_budget(shown, text, hue):
    reader = Reader(page.render(report(shown, row("output", check="local", error=0.0)), "triglot"))
    assert hue in reader.cells[0][1]
    assert text in reader.text


def test_a_framework_without_results_is_named():
    html = page.render(report(row("", check="worker", verdict="error", error=None, reason="died")), "triglot")
    assert "torch gave no results: died" in re.sub(r"<[^>]+>", "", html)


def test_the_command_writes_the_page(command, workplace):
    code, _, err = command("parity", "multihead-tiny", "--framework", "torch", "--html", "page.html")
    assert (code, err) == (0, "")
    html = (workplace / "page.html").read_text()
    assert "--html page.html" in html
    assert "attention.context" in html


def test_a_page_that_would_overwrite_something_is_refused(command, workplace):
    (workplace / "model.npz").write_text("precious")
    for arguments in (("model.npz", "--html", "model.npz"), ("multihead-tiny", "--html", "a", "--json", "a")):
        assert command("parity", *arguments)[0] == 2
    assert (workplace / "model.npz").read_text() == "precious"


@pytest.mark.browser
def test_a_real_browser_shows_the_page(browser, tmp_path):
    rows = [row(f"encoder.layers.{layer}.key", error=float(layer)) for layer in range(8)]
    page.write_page(report(*rows), tmp_path / "page.html", "triglot")
    shown = browser(tmp_path / "page.html")
    assert len(Reader(shown).cells) == 8


def test_an_original_is_only_where_it_has_results():
    rows = [row("encoder.layers.0.key"), row("api.encode", "original", framework="transformers")]
    made = report(*rows, frameworks=("torch", "transformers"), originals=("compared with <transformers>",))
    html = page.render(made, "triglot parity")
    assert "compared with <transformers>" in Reader(html).text
    titles = [title for title, _ in Reader(html).cells]
    assert [title for title in titles if "key of" in title] == [titles[0]]
    assert any(title.startswith("api.encode of transformers") for title in titles)
    assert not any("transformers gave no encoder" in title for title in titles)
