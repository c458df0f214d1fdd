"""Folders, imports and the wheel: what is installed is what stands here, and nothing is loaded before it is needed."""

import ast
import re
import subprocess
import sys
import venv
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
LAYERS = ("shared", "impls", "parity", "bench", "triglot")  # each may import those before it
FRAMEWORK_MODULES = {"torch", "paddle", "jax", "flax"}


def python_files(*folders):
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def module_name(path):
    """The name under which a file is imported: shared/model/config.py is triglot.shared.model.config."""
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
    """Every node, except those that only a type checker sees."""
    for child in ast.iter_child_nodes(tree):
        if not is_type_checking(child):
            yield child
            yield from statements(child)


def imported_names(module, source):
    """Every absolute name that a module imports; of `from a import b` that is a.b, which may be a module or not."""
    package = module.split(".") if MODULES.get(module, Path()).name == "__init__.py" else module.split(".")[:-1]
    for node in statements(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            start = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{start}.{alias.name}" for alias in node.names)


def modules_in_strings(source):
    """Strings such as "triglot.parity.worker": commands of worker processes, and the builders of arms."""
    for node in ast.walk(ast.parse(source)):
        text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
        if name := re.fullmatch(r"(triglot(?:\.[a-z_]+)+)(?::\w+)?", text):
            yield name[1]


def own_modules(names):
    """The modules of ours among ``names``: the longest part of each that is one."""
    for name in names:
        parts = name.split(".")
        lengths = [length for length in range(len(parts), 1, -1) if ".".join(parts[:length]) in MODULES]
        if parts[0] == "triglot":
            yield ".".join(parts[: lengths[0]]) if lengths else "triglot"


def arrows_upwards(module, source):
    """The modules that ``module`` names although they stand in a higher layer."""
    names = [*imported_names(module, source), *modules_in_strings(source)]
    allowed = LAYERS.index(layer_of(module))
    return sorted({other for other in own_modules(names) if LAYERS.index(layer_of(other)) > allowed})


def circle(arrows):
    """A circle of modules, as a list that begins and ends with the same one; empty if there is none."""
    done, path = set(), []

    def visit(module):
        if module in path:
            return [*path[path.index(module) :], module]
        if module in done:
            return []
        path.append(module)
        found = next((found for other in sorted(arrows.get(module, ())) if (found := visit(other))), [])
        path.pop()
        done.add(module)
        return found

    return next((found for module in sorted(arrows) if (found := visit(module))), [])


@pytest.mark.parametrize("module", MODULES)
def test_imports_go_one_way(module):
    assert arrows_upwards(module, MODULES[module].read_text()) == []


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
def test_an_arrow_upwards_is_noticed(source, named):
    assert arrows_upwards("triglot.impls.model", source) == [named]


def test_no_module_imports_itself_by_way_of_others():
    arrows = {
        module: set(own_modules(imported_names(module, path.read_text()))) - {module, "triglot"}
        for module, path in MODULES.items()
    }
    assert circle(arrows) == []


def test_a_circle_is_noticed():
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]


@pytest.mark.parametrize("path", python_files(*LAYERS, "tests"), ids=lambda path: str(path.relative_to(ROOT)))
def test_our_packages_are_imported_under_triglot(path):
    names = {name.split(".")[0] for name in imported_names("tests", path.read_text())}
    assert not {"shared", "impls", "parity", "bench", "tests"} & names


@pytest.mark.parametrize("path", python_files("shared", "triglot"), ids=lambda path: str(path.relative_to(ROOT)))
def test_shared_and_the_face_import_no_framework(path):
    names = {name.split(".")[0] for name in imported_names(module_name(path), path.read_text())}
    assert not FRAMEWORK_MODULES & names


@pytest.mark.parametrize("statement", ["import triglot", "import triglot.cli", "import triglot; triglot.frameworks()"])
def test_importing_loads_no_framework(statement):
    loaded = f"import sys; {statement}; print(*{{name.split('.')[0] for name in sys.modules}})"
    result = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True)
    heavy = FRAMEWORK_MODULES | {"scipy", "transformers", "tokenizers"}
    assert not heavy & set(result.stdout.split())


def test_wheel_runs_beside_nothing_but_what_it_requires(tmp_path):
    """Built, installed into an empty environment, and run from a folder that is not ours."""
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, ROOT]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("triglot-*.whl")
    venv.create(tmp_path / "venv", with_pip=False)
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", site, wheel]
    subprocess.run(install, check=True, capture_output=True)
    for path in required_files("triglot"):
        (site / path.name).symlink_to(path)
    python = tmp_path / "venv" / "bin" / "python"

    def run(*arguments):
        return subprocess.run([python, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False)

    where = run("-c", "import triglot; print(triglot.frameworks(), triglot.__file__)")
    assert where.stdout == f"() {site / 'triglot' / '__init__.py'}\n"
    save = "import triglot; triglot.save(triglot.initialize('bert-base-tiny'), 'tiny.npz')"
    encode = "print(triglot.build('numpy', triglot.load('tiny.npz')).encode([[1, 2]]).shape)"
    assert run("-c", f"{save}; {encode}").stdout == "(1, 2, 24)\n"
    assert "bert-base-tiny" in run("-m", "triglot", "recipes").stdout
    nothing = run("-m", "triglot", "parity", "bert-base-tiny")
    assert nothing.returncode == 2
    assert nothing.stderr.startswith("triglot: no framework is installed; install triglot[torch]")


def required_files(package):
    """The top-level files and folders of all that ``package`` requires, without extras, from this environment."""
    names, pending = set(), [package]
    while pending:
        for line in metadata.requires(pending.pop()) or []:
            requirement = Requirement(line)
            wanted = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
            if wanted and requirement.name not in names:
                names.add(requirement.name)
                pending.append(requirement.name)
    files = [(metadata.distribution(name), file) for name in names for file in metadata.files(name) or []]
    found = {
        Path(str(owner.locate_file(file.parts[0])))
        for owner, file in files
        if file.parts[0] not in ("..", "__pycache__")
    }
    return sorted(found)
