"""The package: a complete sdist and wheel, which run in an environment that holds only what they require."""

import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
FOLDERS = ("shared", "impls", "parity", "bench")
DATA = [
    "triglot/__init__.pyi",
    "triglot/bench/report/bench.html.jinja",
    "triglot/parity/parity.html.jinja",
    "triglot/py.typed",
]

# Builds of the same folder at the same time would write the same files.
pytestmark = pytest.mark.xdist_group("package")

BUILD_EDITABLE = """
import sys, zipfile
from setuptools import build_meta
wheel = zipfile.ZipFile(f"{sys.argv[1]}/{build_meta.build_editable(sys.argv[1])}")
for name in wheel.namelist():
    if ".dist-info" not in name:
        print("FILE", name, wheel.read(name).decode().strip())
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The files of an sdist, and of a wheel that was built from that sdist."""
    folder = tmp_path_factory.mktemp("built")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT]
    subprocess.run(command, check=True, capture_output=True)
    (sdist,), (wheel,) = folder.glob("triglot-*.tar.gz"), folder.glob("triglot-*.whl")
    return sdist, wheel


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """An empty environment with the wheel and its required packages: its Python, and its folder of packages."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    (site,) = folder.glob("lib/python*/site-packages")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", site, built[1]]
    subprocess.run(install, check=True, capture_output=True)
    link_packages(site)
    return folder / "bin" / "python", site


def link_packages(site, extra=""):
    """Link what Triglot requires, with one of its extras, from the environment of the tests."""
    names, pending = set(), [("triglot", extra)]
    while pending:
        package, package_extra = pending.pop()
        for line in metadata.requires(package) or []:
            requirement = Requirement(line)
            required = requirement.marker is None or requirement.marker.evaluate({"extra": package_extra})
            if required and requirement.name not in names:
                names.add(requirement.name)
                pending.append((requirement.name, ""))
    for distribution in map(metadata.distribution, names):
        for file in distribution.files or []:
            top_level = file.parts[0]
            if top_level not in ("..", "__pycache__") and not (site / top_level).exists():
                (site / top_level).symlink_to(distribution.locate_file(top_level))


def run_without_path(command, folder):
    """Run a command that cannot import the repository by PYTHONPATH."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def expected_modules():
    """Every module, with the name of its file in the wheel."""
    paths = [path.relative_to(ROOT) for path in (ROOT / "triglot").rglob("*.py")]  # rglob does not follow links
    paths += [Path("triglot") / path.relative_to(ROOT) for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    return sorted({str(path) for path in paths})


def test_the_wheel_holds_every_module_once_and_no_results(built):
    with zipfile.ZipFile(built[1]) as wheel:
        files = [name for name in wheel.namelist() if ".dist-info/" not in name]
    assert sorted(files) == sorted([*expected_modules(), *DATA])


def test_the_sdist_holds_regular_files(built):
    with tarfile.open(built[0]) as sdist:
        members = sdist.getmembers()
    assert all(member.isfile() or member.isdir() for member in members)
    names = {member.name.partition("/")[2] for member in members}
    assert {*expected_modules(), *DATA, "pyproject.toml", "README.md", "LICENSE"} <= names


def test_the_wheel_runs_with_only_what_it_requires(installed, tmp_path):
    python, site = installed

    def run(*arguments):
        return run_without_path([python, *arguments], tmp_path)

    where = run("-c", "import triglot; print(triglot.frameworks(), triglot.__file__)")
    assert where.stdout == f"() {site / 'triglot' / '__init__.py'}\n"
    save = "import triglot; triglot.save(triglot.initialize('bert-base-tiny'), 'tiny.npz')"
    encode = "print(triglot.build('numpy', triglot.load('tiny.npz')).encode([[1, 2]]).shape)"
    assert run("-c", f"{save}; {encode}").stdout == "(1, 2, 24)\n"
    assert "bert-base-tiny" in run("-m", "triglot", "recipes").stdout
    refused = run("-m", "triglot", "parity", "dygraph-tiny")
    assert refused.returncode == 2
    assert refused.stderr.startswith("triglot: no framework is installed; install triglot[torch]")


def test_the_wheel_passes_parity_once_a_framework_is_installed(installed, tmp_path):
    python, site = installed
    link_packages(site, extra="torch")
    command = [python, "-m", "triglot", "parity", "dygraph-tiny", "--framework", "torch", "--threads", "1"]
    result = run_without_path(command, tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.endswith("verdict: pass\n")


def test_an_editable_install_is_a_static_path(tmp_path):
    command = [sys.executable, "-c", BUILD_EDITABLE, tmp_path]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("FILE ")]
    _, name, content = line.split(" ", 2)
    assert name.endswith(".pth")
    assert content == str(ROOT)
