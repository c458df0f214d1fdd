"""What differs between the libraries that store models of the same families: transformers, its Flax part, PaddleNLP."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from triglot.shared.model.config import ModelConfig

from .huggingface_families import Family
from .sizes import role_of


@dataclass(frozen=True)
class Library:
    """How one library stores its models.

    Attributes:
        dialect: the name of the dialect.
        families: the families, which ``model_type`` in the configuration tells apart.
        family_for: returns the name of the family that has the special features of a configuration.
        weights_file: the file of weights in a folder, whose suffix chooses the format.
        shown_by: the parameters whose names show that weights belong to the library.
        standard: returns the content of a folder's configuration file as transformers would write it.
        old_names: parts of names that older versions of the library used -> those of today.
        others: a part of a name that shows that the weights belong to another library with the same table of tokens.
    """

    dialect: str
    families: tuple[Family, ...]
    family_for: Callable[[ModelConfig], str]
    weights_file: str
    shown_by: tuple[str, ...] = ("embeddings.token.weight", "encoder.layers.0.attention.query.weight")
    standard: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict[str, Any]
    old_names: Mapping[str, str] = field(default_factory=dict[str, str])
    others: str = ""

    @cached_property
    def model_types(self) -> dict[str, Family]:
        """Each model type and its family."""
        return {model_type: family for family in self.families for model_type in family.model_types}

    @cached_property
    def signs(self) -> set[str]:
        """The names, in every family, of the parameters that show the library."""
        tables = [family.table(()) for family in self.families]
        return {table.name(canonical, role_of(canonical)) for table in tables for canonical in self.shown_by}

    def plain_name(self, name: str) -> str:
        """Return the name of a tensor without the prefix of a task model, and in today's words."""
        prefix, _, rest = name.partition(".")
        plain = rest if prefix in self.model_types else name
        for old, new in self.old_names.items():
            plain = plain.replace(old, new)
        return plain
