"""The prepared caches of PyTorch's compiler: complete, or absent."""

import errno
import os
import subprocess
import sys

import pytest

from triglot.bench.run import toolchain
from triglot.bench.run.toolchain import Toolchain

MODEL = """
import torch
torch.set_grad_enabled(False)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.LayerNorm(8)).eval()
torch.compile(model, options={"freezing": True})(torch.ones(4, 8))
"""


@pytest.mark.audit
def test_a_cold_start_excludes_what_the_compiler_learns_about_the_machine(tmp_path):
    """A model that is compiled with its weights finds the headers, and the instructions of the processor."""
    folders = [tmp_path / name for name in ("first", "second")]
    with Toolchain(time_limit=300) as prepared:
        for folder in folders:
            prepared.copy_to(folder)
    first, before = ({path.relative_to(folder) for path in folder.rglob("*.*")} for folder in folders)
    assert first == before
    assert {".so", ".gch"} <= {path.suffix for path in before}
    subprocess.run(
        [sys.executable, "-c", MODEL], check=True, env={**os.environ, **toolchain.cache_variables(folders[1])}
    )
    after = {path.relative_to(folders[1]) for path in folders[1].rglob("*.*")}
    new = [path.name for path in after - before if path.suffix in (".so", ".gch")]
    assert new
    assert all(name.endswith(".main.so") for name in new), "only the kernels of the model"


@pytest.mark.parametrize("end", ["import time; time.sleep(100)", "raise SystemExit(1)"])
def test_half_made_caches_are_discarded(end, tmp_path, monkeypatch):
    """A compiler would take an empty file for a processor without vector instructions. No process is left behind."""
    begun = tmp_path / "begun"
    code = f"""
import os, pathlib, subprocess, sys
pathlib.Path(os.environ["TMPDIR"], "half.so").touch()
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
pathlib.Path({str(begun)!r}).write_text(str(child.pid))
{end}
"""
    monkeypatch.setattr(toolchain, "COMMAND", (sys.executable, "-c", code))
    folders = [tmp_path / name for name in ("first", "second")]
    with Toolchain(time_limit=3) as prepared:
        for folder in folders:
            folder.mkdir()
            prepared.copy_to(folder)
            assert list(folder.iterdir()) == []
    listed = subprocess.run(["ps", "-o", "stat=", "-p", begun.read_text()], capture_output=True, text=True, check=False)
    assert listed.stdout.strip() in ("", "Z", "Zs", "ZN")


def test_a_full_disk_is_a_row(swept, monkeypatch):
    def copy_to(self, folder):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Toolchain, "copy_to", copy_to)
    _, results = swept(["fake-a", "fake-compiled"])
    assert [result.status for result in results.values()] == ["ok", "failed"]
    assert "No space left on device" in results["fake-compiled"].failure


@pytest.mark.long
def test_only_arms_that_pytorch_compiles_to_cpp_need_the_caches(swept, monkeypatch):
    prepared_for = []
    monkeypatch.setattr(Toolchain, "copy_to", lambda _, folder: prepared_for.append(folder.name))
    swept(["fake-a", "fake-compiled", "fake-b"], again=False)
    assert [name.rsplit("-", 2)[0] for name in prepared_for] == ["fake-compiled"]
