"""What a user gives to be ported: a file of tensors, or the folder of a model."""

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from triglot.shared.arrays import Array
from triglot.shared.checkpoint import manifest
from triglot.shared.checkpoint.shards import INDEX
from triglot.shared.errors import ModelNotFoundError, PortingError

from . import containers
from .containers import orbax, shards
from .containers import zip as zip_file
from .json_file import read_object

CONFIG_FILE = "config.json"
OLD_CONFIG_FILE = "model_config.json"  # of PaddleNLP before 2.5
MODULES_FILE = "modules.json"
# The weights of a folder. The first one that exists is read.
WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin", "model_state.pdparams", "flax_model.msgpack")

_WRAPPERS = ("module.", "_orig_mod.")  # prefixes of DistributedDataParallel and torch.compile


@dataclass(frozen=True)
class Source:
    """A file or a folder. What is in it is read when it is asked for.

    ``heads`` are the heads to keep; None keeps all. ``preferred`` is the file of weights to read, if a folder has it.

    Raises:
        ModelNotFoundError: the path does not exist.
        PortingError: the path or a file in it is unreadable or damaged.
    """

    path: Path
    heads: Collection[str] | None = None
    preferred: str = ""

    def __post_init__(self) -> None:
        try:
            self.path.stat()
            if self.path.is_dir():
                os.listdir(self.path)  # an existing folder may still be unreadable
        except PermissionError as error:
            raise PortingError(f"cannot read {self.path}: {error.strerror}; change its permissions") from error
        except (OSError, ValueError) as error:  # ValueError: names that no file can have
            raise ModelNotFoundError(
                f"{self.path} does not exist; give a checkpoint file, a model folder or a recipe"
            ) from error

    @cached_property
    def is_neutral(self) -> bool:
        """Whether it is a checkpoint of Triglot, as far as its directory or its name tells."""
        if self.path.is_dir():
            return (self.path / INDEX).is_file() and not (self.path / CONFIG_FILE).exists()
        if not self.path.is_file():
            return False
        members = zip_file.names(self.path)
        return manifest.MEMBER in members or (self.path.suffix == ".npz" and not members)

    @property
    def has_modules(self) -> bool:
        """Whether it is a folder with the modules of sentence-transformers."""
        return (self.path / MODULES_FILE).is_file()

    @cached_property
    def is_folder(self) -> bool:
        """Whether it is the folder of a model, not only its tensors."""
        return self.path.is_dir() and not orbax.is_checkpoint(self.path)

    @cached_property
    def weights(self) -> Path:
        """The file or the Orbax checkpoint that holds the tensors, or the index of several such files."""
        if not self.is_folder:
            return self.path
        for name in (self.preferred, *WEIGHT_FILES) if self.preferred else WEIGHT_FILES:
            for path in (self.path / name, self.path / f"{name}{shards.SUFFIX}"):
                if path.is_file():
                    return path
        raise PortingError(
            f"{self.path} holds no weights that Triglot recognises; expected {' or '.join(WEIGHT_FILES)} beside "
            f"{CONFIG_FILE}, or give a file"
        )

    def with_weights(self, name: str) -> "Source":
        """Return the same source, of which the file ``name`` is read if it is a folder that has it."""
        if not self.is_folder or self.weights.name in (name, f"{name}{shards.SUFFIX}"):
            return self
        return replace(self, preferred=name)

    @cached_property
    def wrapper(self) -> str:
        """The prefix that wrappers of a module put before every name, such as "module."; empty if there is none."""
        return "" if self.has_modules else self._read[1]

    @cached_property
    def tensors(self) -> Mapping[str, Array]:
        """The tensors by name, without the prefix ``wrapper``, as views of the mapped file."""
        return self._read[0]

    @cached_property
    def _read(self) -> tuple[Mapping[str, Array], str]:
        tensors, wrapper = containers.read(self.weights), ""
        while prefix := _common_wrapper(tensors):
            tensors, wrapper = {name.removeprefix(prefix): tensors[name] for name in tensors}, wrapper + prefix
        return tensors, wrapper

    @cached_property
    def fields(self) -> Mapping[str, Any] | None:
        """The content of the configuration file; None for a bare file of weights."""
        return None if not self.is_folder else read_object(self.path / self.config_file)

    @cached_property
    def config_file(self) -> str:
        """The name of the configuration file in a folder."""
        is_old = (self.path / OLD_CONFIG_FILE).is_file() and not (self.path / CONFIG_FILE).is_file()
        return OLD_CONFIG_FILE if is_old else CONFIG_FILE


def _common_wrapper(names: Collection[str]) -> str:
    """Return the prefix of a wrapper with which all names begin; empty if there is none."""
    found = (prefix for prefix in _WRAPPERS if names and all(name.startswith(prefix) for name in names))
    return next(found, "")
