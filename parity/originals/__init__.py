"""Originals: models that were ported, run in their own libraries and judged like a framework.

Each library has a module in ``libraries``, with a function ``run`` that takes an ``Original``, batches and a dtype. It
returns the results of the model for each batch, under the names of our public methods: ``api.encode``,
``api.heads.pooler`` etc.

To add a library, write such a module, and list it in ``LIBRARIES``.
"""

import importlib.util
from dataclasses import dataclass
from pathlib import Path

from triglot.shared.errors import InputError
from triglot.shared.model.config import ModelConfig


@dataclass(frozen=True)
class Library:
    """A library that runs originals: its ``name`` in reports, the ``module`` here, and the packages that it needs."""

    name: str
    module: str
    packages: tuple[str, ...]

    @property
    def missing(self) -> list[str]:
        """The packages that are not installed."""
        return [package for package in self.packages if importlib.util.find_spec(package) is None]


# By the dialect of the weights.
LIBRARIES = {
    "huggingface": Library("transformers", "transformers_model", ("transformers", "torch")),
    "sentence-transformers": Library(
        "sentence-transformers", "sentence_transformers_model", ("sentence_transformers", "torch")
    ),
    "torch-transformer": Library("torch.nn", "torch_nn", ("torch",)),
    "paddle-transformer": Library("paddle.nn", "paddle_nn", ("paddle",)),
    "torch": Library("module of torch", "own_module", ("torch",)),
    "paddle": Library("module of paddle", "own_module", ("paddle",)),
    "nnx": Library("module of nnx", "own_module", ("flax",)),
    "onnx": Library("onnxruntime", "onnx_file", ("onnxruntime",)),
}
ONNX_SUFFIX = ".onnx"


@dataclass(frozen=True)
class Original:
    """A model in the files of its library.

    ``dialect``: the dialect of the weights, a key of ``LIBRARIES``. ``config``: the configuration of the port. The
    library uses the original's own configuration if it has one (``has_own_config``), and otherwise ``config``.
    """

    path: Path
    dialect: str
    config: ModelConfig

    @property
    def library(self) -> Library:
        """The library that runs it."""
        return LIBRARIES[self.dialect]

    @property
    def has_own_config(self) -> bool:
        """Whether the files hold the settings that no tensor shows. Otherwise the user passes them, perhaps wrongly."""
        return self.dialect in ("onnx", "sentence-transformers") or (
            self.dialect == "huggingface" and self.path.is_dir()
        )

    @property
    def description(self) -> str:
        """The original in words, for reports."""
        own = "" if self.has_own_config else ", built from the same configuration (--example checks that)"
        return f"{self.path} in {self.library.name}{own}"


def find_original(path: Path, dialect: str, config: ModelConfig) -> Original:
    """Return the original at ``path``.

    Raises:
        InputError: no library runs this dialect, or it is not installed.
    """
    if dialect not in LIBRARIES:
        raise InputError(
            f"no library runs the dialect {dialect}; record what the original computes, and pass it as an example "
            "(example=, or --example on the command line)"
        )
    original = Original(path, dialect, config)
    if missing := original.library.missing:
        raise InputError(f"{', '.join(missing)} is not installed; install it to run the original")
    return original
