"""The documents: their code runs and prints what they show, and everything that they name exists."""

import ast
import codeop
import contextlib
import importlib
import importlib.util
import io
import re
import shlex
from functools import cache
from itertools import zip_longest
from pathlib import Path

import numpy as np
import pytest

from triglot import impls
from triglot.shared.model import schema
from triglot.shared.model.recipes import recipe, recipes

ROOT = Path(__file__).parents[2]
TUTORIALS = ROOT / "docs" / "articles"
PAGES = sorted(TUTORIALS.glob("0*.md"))
RUN_PAGES = [
    *PAGES,
    TUTORIALS / "README.md",
    *(ROOT / "docs" / name for name in ("quickstart.md", "training.md", "embedding.md", "performance.md")),
]
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]


def name_of(path):
    return str(path.relative_to(ROOT))


BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
RUN = ("python", "sh")
KINDS = (*RUN, "text", "console")  # console: commands that take too long for a test


def blocks(page):
    """Yield the kind and content of each fenced block, and the output shown directly below it, or None."""
    matches = list(BLOCK.finditer(page))
    for match, following in zip_longest(matches, matches[1:]):
        has_output = following and following[1] == "text" and not page[match.end() : following.start()].strip()
        yield match[1], match[2], following[2] if has_output else None


def runnable(page):
    code = [block for block in blocks(page) if block[0] in RUN]
    if not any(kind == "python" for kind, _, _ in code):
        raise AssertionError("the page has no code to run")
    return code


def assert_output(content, printed, expected):
    """Compare the whole output; only spaces at the end of a line may differ."""
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


@pytest.mark.parametrize("path", RUN_PAGES, ids=name_of)
def test_the_page_runs_and_prints_what_it_shows(path, command, workplace, pytestconfig):
    if set(pytestconfig.getoption("--frameworks").split(",")) != set(impls.FRAMEWORKS):
        pytest.skip("the tutorials run in all frameworks")
    with np.printoptions():  # restore what the page sets
        run_page(path.read_text(), command)


def test_the_guide_loads_bare_modules(command, workplace):
    """The section of the porting guide that begins with these files and ends with modules that hold them."""
    page = (ROOT / "docs" / "porting.md").read_text()
    section = page.partition("## The dialects `torch`, `paddle` and `nnx`\n")[2].partition("\n## ")[0]
    run_page(section, command)
    suffixes = ("pt", "pdparams", "safetensors", "orbax", "npz")
    assert {path.name for path in workplace.iterdir()} == {f"minilm.{suffix}" for suffix in suffixes}


def assert_pasteable(content):
    """Python's prompt reads line by line, and an indented block ends with an empty line."""
    entered: list[str] = []
    for line in [*content.splitlines(), ""]:
        entered.append(line)
        # An empty line ends a statement.
        if codeop.compile_command("\n".join(entered), "prompt") is not None:
            entered.clear()
    assert not any(entered), "the last statement is incomplete"


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_code_can_be_pasted_at_the_prompt(path):
    for kind, content, _ in blocks(path.read_text()):
        if kind == "python":
            assert_pasteable(content)


def test_code_that_cannot_be_pasted_is_noticed():
    assert_pasteable("for i in ():\n    i\n\nprint(1)\n")
    with pytest.raises(SyntaxError):
        assert_pasteable("for i in ():\n    i\nprint(1)\n")


def test_each_article_has_a_page_and_each_page_is_listed():
    names = ["000-translation", "001-dygraph", "002-prenorm", "003-annotated", "004-multihead"]
    assert [path.stem for path in PAGES] == names
    listed = re.findall(r"\]\((\d{3}-\w+)\.md\)", (TUTORIALS / "README.md").read_text())
    assert sorted(set(listed)) == names


@pytest.mark.parametrize("path", RUN_PAGES, ids=name_of)
def test_every_block_of_a_page_has_a_known_kind(path):
    page = path.read_text()
    assert len(re.findall(r"^```", page, re.MULTILINE)) == 2 * len(list(BLOCK.finditer(page)))
    assert {kind for kind, _, _ in blocks(page)} <= set(KINDS)


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_every_option_of_a_shown_command_exists(path, command):
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
    with pytest.raises(AssertionError, match=r"nothing\.npz"):
        run_page("```python\n1\n```\n\n```sh\ntriglot inspect nothing.npz\n```\n", command)


LINK = re.compile(r"\]\(([^)\s]+)\)")
# `impls/pytorch/attention.py`, or `impls/*/attention.py: MultiHeadAttention.attend, masked_softmax` of all four.
PLACE = re.compile(r"`((?:impls|shared|parity|bench|triglot|tests|docs)/[\w*/.-]*)(?:: ([\w., ]+))?`")
DOTTED = re.compile(r"\btriglot(?:\.[A-Za-z_]\w*)+(?![\w/])")
MAKE_TARGET = re.compile(r"`make ([\w-]+)`")
# A parameter by its name, or the first words of one; N is the number of a layer.
PARAMETER = re.compile(r"`((?:embeddings|target_embeddings|encoder|decoder|heads|attention)\.[\w.]+)`")


def missing(path, text):
    """Yield the links, files, members, dotted names and make targets in ``text`` that do not exist."""
    prose = BLOCK.sub("", text)
    for link in LINK.findall(prose):
        name, _, anchor = link.partition("#")
        target = path.parent / name if name else path
        if "://" not in link and not (target.exists() and (not anchor or anchor in anchors(target))):
            yield f"the link {link}"
    for place, members in PLACE.findall(prose):
        files = sorted(ROOT.glob(place))
        if len(files) < (len(impls.PACKAGES) if place.startswith("impls/*") else 1):
            yield f"the place {place}"
        for member in members.split(", ") if members else ():
            if not all(member in members_of(file) for file in files):
                yield f"{member} in {place}"
    yield from (name for name in sorted(set(DOTTED.findall(text))) if not resolves(name))
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    yield from (f"make {target}" for target in MAKE_TARGET.findall(prose) if target not in targets)


@cache
def anchors(page):
    """The names by which a link can point to a heading of a page."""
    headings = re.findall(r"^#+ (.+)$", BLOCK.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


def resolves(name):
    """Whether a dotted name is a module, or a member of one."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            if importlib.util.find_spec(".".join(parts[:length])) is None:
                continue
        except ModuleNotFoundError:
            continue
        value = importlib.import_module(".".join(parts[:length]))
        for part in parts[length:]:
            if not hasattr(value, part):
                return False
            value = getattr(value, part)
        return True
    return False


@cache
def members_of(file):
    """The classes, functions, constants and methods (as Class.method) of a file."""
    names = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
            methods = (part for part in node.body if isinstance(part, ast.FunctionDef))
            names |= {f"{node.name}.{method.name}" for method in methods}
    return names


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_everything_that_a_document_names_exists(path):
    assert list(missing(path, path.read_text())) == []


def test_a_name_that_does_not_exist_is_noticed():
    text = (
        "[a](nothing.md) [b](docs/masks.md#masks) [c](docs/masks.md#x) [d](#x) "
        "`impls/pytorch/none.py` `impls/*/masks.py: causal, casual` `impls/` "
        "`make tea` `make test` triglot.train triglot.teach triglot.shared.errors.TriglotError triglot.shared.error.X"
    )
    expected = [
        *("the link nothing.md", "the link docs/masks.md#x", "the link #x"),
        *("the place impls/pytorch/none.py", "casual in impls/*/masks.py"),
        *("triglot.shared.error.X", "triglot.teach", "make tea"),
    ]
    assert list(missing(ROOT / "README.md", text)) == expected


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_every_parameter_on_a_page_belongs_to_its_recipe(path):
    config = recipe(path.stem.split("-")[1])
    parameters = {re.sub(r"\.layers\.\d+\.", ".layers.N.", name) for name in schema.parameters(config)}
    named = PARAMETER.findall(BLOCK.sub("", path.read_text()))
    assert named
    for name in named:
        assert any(f"{parameter}.".startswith(f"{name}.") for parameter in parameters), name


def test_the_quickstart_lists_every_recipe():
    text = (ROOT / "docs" / "quickstart.md").read_text()
    table = re.search(r"^\| recipe \|.*?\n\n", text, re.DOTALL | re.MULTILINE)
    assert table is not None
    listed = re.findall(r"^\| `([\w-]+)` \|", table[0], re.MULTILINE)
    assert sorted(listed) == sorted(name for name in recipes() if not name.endswith("-tiny"))


def test_every_page_is_in_the_index():
    linked = set(LINK.findall((ROOT / "docs" / "README.md").read_text()))
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert pages <= linked


def assert_tables(page):
    """A table is a header, a line of dashes directly below it, and rows, with the same number of cells in each line."""
    prose = BLOCK.sub("", page)
    for table in re.findall(r"(?:^ *\|.*(?:\n|\Z))+", prose, re.MULTILINE):
        cells = [re.split(r"(?<!\\)\|", line.strip())[1:] for line in table.splitlines()]
        assert not any(row.pop() for row in cells), table  # a line ends with a bar
        assert len(cells) > 1, table
        assert all(re.fullmatch(":?-+:?", cell.strip()) for cell in cells[1]), table
        assert len({len(row) for row in cells}) == 1, table


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_tables_are_tables(path):
    assert_tables(path.read_text())


@pytest.mark.parametrize("broken", ["| a |\n\n|---|\n| 1 |\n", "| a |\n| 1 |\n", "| a |\n|---|\n| 1 | 2 |\n"])
def test_broken_tables_are_noticed(broken):
    with pytest.raises(AssertionError):
        assert_tables(broken)


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120
