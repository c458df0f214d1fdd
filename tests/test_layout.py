"""Folders, imports and the wheel: what is installed is what stands here, and nothing is loaded before it is needed."""

import ast
import subprocess
import sys
import tomllib
import venv
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
LIBRARY = ("triglot", "shared", "impls", "bench")
FRAMEWORK_MODULES = {"torch", "paddle", "jax", "flax"}


def python_files(*folders):
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def absolute_imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield str(node.module).split(".")[0]


def test_packages_are_the_folders_on_disk():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    found = {".".join(path.parent.relative_to(ROOT).parts) for path in python_files(*LIBRARY)}
    expected = {name if name.split(".")[0] == "triglot" else f"triglot.{name}" for name in found}
    assert set(settings["packages"]) == expected


@pytest.mark.parametrize("path", python_files(*LIBRARY, "tests"), ids=lambda path: str(path.relative_to(ROOT)))
def test_our_packages_are_imported_under_triglot(path):
    assert not {"shared", "impls", "tests", "bench"} & set(absolute_imports(path))


@pytest.mark.parametrize("path", python_files("shared", "triglot"), ids=lambda path: str(path.relative_to(ROOT)))
def test_shared_and_the_face_import_no_framework(path):
    assert not FRAMEWORK_MODULES & set(absolute_imports(path))


@pytest.mark.parametrize("path", python_files("shared"), ids=lambda path: str(path.relative_to(ROOT)))
def test_shared_knows_no_implementation(path):
    assert "triglot" not in set(absolute_imports(path))
    depth = len(path.relative_to(ROOT / "shared").parts)
    for node in ast.walk(ast.parse(path.read_text())):
        assert not (isinstance(node, ast.ImportFrom) and node.level > depth), "an import leaves shared"


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
