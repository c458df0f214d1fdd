"""Mutants: implementations with a planted bug, imported beside the correct ones."""

import importlib
import importlib.util
import shutil
import sys
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from triglot import impls
from triglot.impls.model import Model
from triglot.parity.jobs import Build

SOURCES = Path(impls.__file__).parent

_numbers = count()


@contextmanager
def planted(framework: str, file: str, change: Mapping[str, str]) -> Generator[Build]:
    """Change the source text of a copy of an implementation, and yield a function that builds its models.

    Raises:
        ValueError: the text to change is not there.
    """
    # A member of triglot.impls, so that relative imports work as in the original.
    name = f"triglot.impls.mutant_{next(_numbers)}"
    with tempfile.TemporaryDirectory(prefix="triglot-") as folder:
        package = Path(folder) / name.rsplit(".", 1)[-1]
        shutil.copytree(SOURCES / impls.PACKAGES[framework], package, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(SOURCES / "model.py", package)
        (package / file).write_text(changed_source(framework, file, change))
        try:
            yield _builder(name, package)
        finally:
            for module in [module for module in sys.modules if module.startswith(name)]:
                del sys.modules[module]


def changed_source(framework: str, file: str, change: Mapping[str, str]) -> str:
    """Return the source text of an implementation's file with each key of ``change`` replaced by its value.

    Raises:
        ValueError: the text to change is not there.
    """
    folder = SOURCES if file == "model.py" else SOURCES / impls.PACKAGES[framework]  # the facade is shared
    source = (folder / file).read_text()
    for old, new in change.items():
        if old not in source:
            raise ValueError(f"{old!r} is not in {file}; update the bug")
        source = source.replace(old, new)
    return source


def hidden(healthy: Build, mutant: Build) -> Build:
    """Return a function that builds models with the bug in their public methods only. What a probe sees is correct."""
    return lambda *arguments: _WithHealthyTrace(healthy(*arguments), mutant(*arguments))  # type: ignore[return-value]


class _WithHealthyTrace:
    def __init__(self, healthy: Model, mutant: Model) -> None:
        self._mutant = mutant
        self.trace, self.masks = healthy.trace, healthy.masks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._mutant, name)


def _builder(name: str, package: Path) -> Build:
    spec = importlib.util.spec_from_file_location(
        name, package / "__init__.py", submodule_search_locations=[str(package)]
    )
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])
    model, backend = (importlib.import_module(f"{name}.{module}") for module in ("model", "backend"))
    return lambda checkpoint, dtype, mode: model.Model(backend.Backend(checkpoint, "cpu", dtype, mode))
