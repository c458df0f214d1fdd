"""What the user says about a configuration, on top of what the weights say themselves."""

from collections.abc import Mapping
from typing import Any

from triglot.shared.errors import ConfigError

from .config import ModelConfig
from .recipes import recipe

Given = str | ModelConfig | Mapping[str, Any] | None


def configured(known: Mapping[str, Any], given: Given) -> ModelConfig:
    """The configuration from the fields that are ``known`` and what is ``given``, which has the last word.

    ``given``: the name of a recipe or a whole configuration, which replaces everything; or single fields.

    Raises:
        ConfigError: a field is unknown, missing or wrong, or there is no recipe of that name.
    """
    if isinstance(given, ModelConfig):
        return given
    if isinstance(given, str):
        return recipe(given)
    if given is not None and not isinstance(given, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"config is a {type(given).__name__}; expected a recipe, a ModelConfig or fields by name")
    return ModelConfig.from_dict({**known, **(given or {})})
