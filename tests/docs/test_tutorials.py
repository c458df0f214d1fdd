"""The tutorials run as they are written: code in order, output compared; and no document names what is not there."""

import ast
import codeop
import contextlib
import io
import re
import shlex
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from triglot import impls
from triglot.shared.model import schema
from triglot.shared.model.recipes import recipe, recipes

ROOT = Path(__file__).parents[2]
TUTORIALS = ROOT / "docs" / "articles"
PAGES = sorted(TUTORIALS.glob("0*.md"))
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
RUN = ("python", "sh")
KINDS = (*RUN, "text", "console")  # console: commands that take too long to be run here


def blocks(page):
    """What stands between fences: kind, content, and the output that is shown below it, if it is shown."""
    found = list(BLOCK.finditer(page))
    for place, block in enumerate(found):
        kind, content = block.groups()
        follows = found[place + 1] if place + 1 < len(found) else None
        shown = follows is not None and follows[1] == "text" and not page[block.end() : follows.start()].strip()
        yield kind, content, follows[2] if shown and follows is not None else None


def runnable(page):
    code = [block for block in blocks(page) if block[0] in RUN]
    if not any(kind == "python" for kind, _, _ in code):
        raise AssertionError("the page has no code to run")
    return code


def assert_output(content, printed, expected):
    """A page that shows an output shows all of it; lines may not end in spaces there."""
    lines = "".join(f"{line.rstrip()}\n" for line in printed.splitlines())
    if lines != expected:
        raise AssertionError(f"{content}printed\n{lines}where the page shows\n{expected}")


def run_page(page, command):
    names: dict = {"__name__": "tutorial"}
    for kind, content, expected in runnable(page):
        printed = io.StringIO()
        if kind == "python":
            with contextlib.redirect_stdout(printed):
                exec(compile(content, "tutorial", "exec"), names)
        else:
            for line in content.splitlines():
                program, *arguments = shlex.split(line, comments=True)
                assert program == "triglot", line
                code, output, errors = command(*arguments)
                assert code == 0, f"{line}: {errors}"
                printed.write(output)
        if expected is not None:
            assert_output(content, printed.getvalue(), expected)


@pytest.mark.parametrize("path", [*PAGES, TUTORIALS / "README.md"], ids=lambda path: path.stem)
def test_the_page_runs_and_prints_what_it_shows(path, command, workplace, pytestconfig):
    if set(pytestconfig.getoption("--frameworks").split(",")) != set(impls.FRAMEWORKS):
        pytest.skip("the tutorials run in all frameworks")
    with np.printoptions():  # what a page sets ends with it
        run_page(path.read_text(), command)


def assert_pasteable(content):
    """Python's prompt takes the lines one after the other: an indented block ends with an empty line there."""
    entered: list[str] = []
    for line in [*content.splitlines(), ""]:
        entered.append(line)
        # An empty line ends a statement, whatever follows.
        if codeop.compile_command("\n".join(entered), "prompt") is not None:
            entered.clear()
    assert not any(entered), "the last statement is not whole"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.stem)
def test_code_can_be_pasted_at_the_prompt(path):
    for kind, content, _ in blocks(path.read_text()):
        if kind == "python":
            assert_pasteable(content)


def test_code_that_cannot_be_pasted_is_noticed():
    assert_pasteable("for i in ():\n    i\n\nprint(1)\n")
    with pytest.raises(SyntaxError):
        assert_pasteable("for i in ():\n    i\nprint(1)\n")


def test_there_is_a_page_for_each_article_and_every_page_is_listed():
    names = ["000-translation", "001-dygraph", "002-prenorm", "003-annotated", "004-multihead"]
    assert [path.stem for path in PAGES] == names
    listed = re.findall(r"\]\((\d{3}-\w+)\.md\)", (TUTORIALS / "README.md").read_text())
    assert sorted(set(listed)) == names


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_every_fence_of_a_page_is_of_a_kind_that_is_checked(path):
    page = path.read_text()
    assert len(re.findall(r"^```", page, re.MULTILINE)) == 2 * len(list(BLOCK.finditer(page)))
    assert {kind for kind, _, _ in blocks(page)} <= set(KINDS)


@pytest.mark.parametrize("path", [*PAGES, ROOT / "README.md"], ids=lambda path: path.stem)
def test_a_command_that_is_only_shown_has_these_options(path, command):
    for kind, content, _ in blocks(path.read_text()):
        lines = content.splitlines() if kind in ("console", "sh") else []
        for line in lines:
            words = shlex.split(line, comments=True)
            if not words or Path(words[0]).name != "triglot":
                continue
            code, text, _ = command(words[1], "--help")
            assert code == 0, line
            for option in (word for word in words if word.startswith("--")):
                assert re.search(rf"(^|\s){option}[\s,/]", text), line


def test_a_page_without_code_and_a_wrong_output_are_noticed(command, workplace):
    with pytest.raises(AssertionError, match=r"^the page has no code to run$"):
        run_page("# A page\n\n```console\ntriglot recipes\n```\n", command)
    page = "```python\nprint(1 + 1)\n```\n\n```text\n3\n```\n"
    with pytest.raises(AssertionError, match="printed\n2\nwhere the page shows\n3\n"):
        run_page(page, command)
    run_page(page.replace("3", "2"), command)
    with pytest.raises(AssertionError, match=r"there is no nothing\.npz"):
        run_page("```python\n1\n```\n\n```sh\ntriglot inspect nothing.npz\n```\n", command)


# What the documents name.

LINK = re.compile(r"\]\(([^)\s]+)\)")
# `impls/pytorch/attention.py`, or `impls/*/attention.py: MultiHeadAttention.attend, masked_softmax` of all four.
PLACE = re.compile(r"`(impls/[\w*/.]*)(?:: ([\w., ]+))?`")
# A parameter by its name, or the first words of one; N is the number of a layer.
PARAMETER = re.compile(r"`((?:embeddings|target_embeddings|encoder|decoder|heads|attention)\.[\w.]+)`")


def problems_of(path, text):
    """Links to nothing, and files and classes that do not exist."""
    prose = BLOCK.sub("", text)
    for link in LINK.findall(prose):
        if "://" not in link and not (path.parent / link.split("#")[0]).exists():
            yield f"the link {link}"
    for place, members in PLACE.findall(prose):
        files = sorted(ROOT.glob(place))
        if len(files) < (len(impls.PACKAGES) if "*" in place else 1):
            yield f"the place {place}"
        for member in members.split(", ") if members else ():
            if not all(member in members_of(file) for file in files):
                yield f"{member} in {place}"


@cache
def members_of(file):
    """Classes, functions, methods as Class.method, and constants."""
    found = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found.add(node.name)
            methods = (part for part in node.body if isinstance(part, ast.FunctionDef))
            found |= {f"{node.name}.{method.name}" for method in methods}
    return found


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_and_every_place_in_the_code_exists(path):
    assert list(problems_of(path, path.read_text())) == []


def test_a_wrong_link_and_a_wrong_place_are_noticed():
    text = "[a](nothing.md) [b](docs/masks.md#x) `impls/pytorch/none.py` `impls/*/masks.py: causal, casual` `impls/`"
    expected = ["the link nothing.md", "the place impls/pytorch/none.py", "casual in impls/*/masks.py"]
    assert list(problems_of(ROOT / "README.md", text)) == expected


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_every_parameter_that_a_page_names_is_one_of_its_recipe(path):
    config = recipe(path.stem.split("-")[1])
    known = {re.sub(r"\.layers\.\d+\.", ".layers.N.", name) for name in schema.parameters(config)}
    named = PARAMETER.findall(BLOCK.sub("", path.read_text()))
    assert named
    for name in named:
        assert any(f"{entry}.".startswith(f"{name}.") for entry in known), name


def test_the_readme_lists_every_recipe():
    text = (ROOT / "README.md").read_text()
    listed = re.search(r"^\| recipe \|.*?\n\n", text, re.DOTALL | re.MULTILINE)
    assert listed is not None
    named = re.findall(r"^\| `([\w-]+)` \|", listed[0], re.MULTILINE)
    assert sorted(named) == sorted(name for name in recipes() if not name.endswith("-tiny"))
