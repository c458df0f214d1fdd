"""What the options that take FIELD=VALUE, or a configuration, mean."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from triglot.shared.errors import ConfigError
from triglot.shared.model.recipes import recipe, recipes


def configuration(base: str | None, fields: Sequence[str] | None) -> dict[str, Any] | None:
    """The fields that ``--config`` and ``--set`` give, the latter with the last word; None if neither is there.

    Raises:
        ConfigError: ``base`` is neither a recipe nor a JSON file of fields, or one of ``fields`` is no FIELD=VALUE.
    """
    if base is None and not fields:
        return None
    known: dict[str, Any] = {}
    if base is not None:
        known = recipe(base).to_dict() if base in recipes() else _read(Path(base))
    return known | {name: _value(text) for name, text in pairs("--set", fields).items()}


def pairs(option: str, given: Sequence[str] | None) -> dict[str, str]:
    """NAME=VALUE, repeated, as a dictionary.

    Raises:
        ConfigError: one has no name, no value, or comes twice.
    """
    found: dict[str, str] = {}
    for text in given or []:
        name, separator, value = text.partition("=")
        if not (name and separator and value):
            raise ConfigError(f"{option} {text!r} is no NAME=VALUE; give a name, an equals sign and a value")
        if name in found:
            raise ConfigError(f"{option} {name} is given twice; give it once")
        found[name] = value
    return found


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = (error.strerror or error) if isinstance(error, OSError) else f"it is no JSON ({error})"
        raise ConfigError(
            f"cannot read {path}: {reason}; give a JSON file with fields of a configuration, or one of the recipes "
            f"{', '.join(recipes())}"
        ) from error
    if isinstance(content, dict) and "config" in content:
        content = content["config"]  # what inspect writes
    if isinstance(content, dict) and "model_type" in content:
        raise ConfigError(f"{path} is the config.json of transformers; give its folder, with the weights, as MODEL")
    if not isinstance(content, dict):
        raise ConfigError(f"cannot read {path}: it holds no JSON object; give one with fields of a configuration")
    return content


def _value(text: str) -> Any:
    """A number, a list, true, false or null as JSON has it; anything else is a word."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
