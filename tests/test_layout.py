"""The imports: they go one way, without circles, and load no framework before it is needed."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import triglot

ROOT = Path(__file__).parent.parent
LAYERS = ("shared", "impls", "parity", "bench", "triglot")  # each may import only the ones before it
FRAMEWORK_MODULES = {"torch", "paddle", "jax", "flax"}


def python_files(*folders):
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def module_name(path):
    """The name that a file is imported by: shared/model/config.py is triglot.shared.model.config."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts if parts[0] == "triglot" else ("triglot", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in python_files(*LAYERS)}


def layer_of(module):
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in LAYERS else "triglot"


def is_type_checking(node):
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def statements(tree):
    """Yield every node except those that only a type checker reads."""
    for child in ast.iter_child_nodes(tree):
        if not is_type_checking(child):
            yield child
            yield from statements(child)


def imported_names(module, source):
    """Yield every absolute name that a module imports. `from a import b` gives a.b, which need not be a module."""
    package = module.split(".") if MODULES.get(module, Path()).name == "__init__.py" else module.split(".")[:-1]
    for node in statements(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            start = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{start}.{alias.name}" for alias in node.names)


def modules_in_strings(source):
    """Yield modules that strings name, such as "triglot.parity.worker" in the command of a worker process."""
    for node in ast.walk(ast.parse(source)):
        text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
        if name := re.fullmatch(r"(triglot(?:\.[a-z_]+)+)(?::\w+)?", text):
            yield name[1]


def triglot_modules(names):
    """Yield the Triglot module that each of ``names`` belongs to; skip the names of other packages."""
    for name in names:
        parts = name.split(".")
        lengths = [length for length in range(len(parts), 1, -1) if ".".join(parts[:length]) in MODULES]
        if parts[0] == "triglot":
            yield ".".join(parts[: lengths[0]]) if lengths else "triglot"


def upward_imports(module, source):
    """Return the modules of higher layers that ``module`` names."""
    names = [*imported_names(module, source), *modules_in_strings(source)]
    allowed = LAYERS.index(layer_of(module))
    return sorted({other for other in triglot_modules(names) if LAYERS.index(layer_of(other)) > allowed})


def circle(arrows):
    """Return a circle of modules, which begins and ends with the same one, or an empty list."""
    done, path = set(), []

    def visit(module):
        if module in path:
            return [*path[path.index(module) :], module]
        if module in done:
            return []
        path.append(module)
        closed = next((closed for other in sorted(arrows.get(module, ())) if (closed := visit(other))), [])
        path.pop()
        done.add(module)
        return closed

    return next((closed for module in sorted(arrows) if (closed := visit(module))), [])


@pytest.mark.parametrize("module", MODULES)
def test_imports_go_one_way(module):
    assert upward_imports(module, MODULES[module].read_text()) == []


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("from triglot.parity.run import compare", "triglot.parity.run"),
        ("def late():\n    import triglot.bench.run.sweep", "triglot.bench.run.sweep"),
        ("from triglot import api", "triglot.api"),
        ("COMMAND = ('-m', 'triglot.parity.worker')", "triglot.parity.worker"),
        ("BUILDER = 'triglot.bench.peers.torch_encoder:prepare'", "triglot.bench.peers.torch_encoder"),
    ],
)
def test_an_upward_import_is_noticed(source, named):
    assert upward_imports("triglot.impls.model", source) == [named]


def test_imports_form_no_circle():
    arrows = {
        module: set(triglot_modules(imported_names(module, path.read_text()))) - {module, "triglot"}
        for module, path in MODULES.items()
    }
    assert circle(arrows) == []


def test_a_circle_is_noticed():
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]


@pytest.mark.parametrize("path", python_files(*LAYERS, "tests"), ids=lambda path: str(path.relative_to(ROOT)))
def test_packages_are_imported_by_their_full_names(path):
    names = {name.split(".")[0] for name in imported_names("tests", path.read_text())}
    assert not {"shared", "impls", "parity", "bench", "tests"} & names


@pytest.mark.parametrize("path", python_files("shared", "triglot"), ids=lambda path: str(path.relative_to(ROOT)))
def test_shared_and_the_face_import_no_framework(path):
    names = {name.split(".")[0] for name in imported_names(module_name(path), path.read_text())}
    assert not FRAMEWORK_MODULES & names


@pytest.mark.parametrize(
    "statement",
    ["import triglot", "import triglot.cli", "import triglot; triglot.frameworks()", "import triglot.parity.worker"],
)
def test_importing_loads_no_framework(statement):
    loaded = f"import sys; {statement}; print(*{{name.split('.')[0] for name in sys.modules}})"
    result = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True)
    heavy = FRAMEWORK_MODULES | {"scipy", "transformers", "tokenizers"}
    assert not heavy & set(result.stdout.split())


def test_every_public_name_is_found():
    """The stub lists them, and each is imported when it is first used."""
    names = dir(triglot)
    assert {"build", "check", "Embedder"} <= {*names}
    for name in names:
        getattr(triglot, name)
    with pytest.raises(AttributeError, match="nonsense"):
        getattr(triglot, "nonsense")  # noqa: B009


def test_importing_triglot_loads_only_what_is_used():
    use = "import sys, triglot; before = [*sys.modules]; triglot.build; print(*before, '|', *sys.modules)"
    before, after = subprocess.check_output([sys.executable, "-c", use], text=True).split("|")
    assert "numpy" not in before.split()
    assert "triglot.api" in after.split()
    assert "triglot.shared.porting" not in after.split()
