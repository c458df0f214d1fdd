"""The options that several commands share, the names that they accept, and how NAME=VALUE is read."""

import json
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from triglot.shared.choices import CHECKS, DEVICES, DTYPES, FRAMEWORKS, MODES
from triglot.shared.errors import ConfigError
from triglot.shared.model.recipes import recipe, recipes
from triglot.shared.porting.dialects import DIALECTS

# Typer takes choices as enumerations.
Framework = StrEnum("Framework", FRAMEWORKS)
Dtype = StrEnum("Dtype", DTYPES)
Mode = StrEnum("Mode", MODES)
Check = StrEnum("Check", CHECKS)
Dialect = StrEnum("Dialect", tuple(DIALECTS))
Device = StrEnum("Device", DEVICES)

CPU, EAGER, FLOAT32, NEUTRAL = Device("cpu"), Mode("eager"), Dtype("float32"), Dialect("neutral")  # the defaults

ModelArgument = Annotated[
    str,
    typer.Argument(metavar="MODEL", help="A recipe, a checkpoint (.npz), a model folder, or bare weights."),
]
ConfigOption = Annotated[
    str | None,
    typer.Option(metavar="RECIPE|FILE", help="Configuration to use: a recipe, or a JSON file of fields."),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="FIELD=VALUE", help="Set a field of the configuration; repeatable."),
]
DialectOption = Annotated[
    Dialect | None,
    typer.Option(help="Dialect of MODEL. Default: the names of its tensors decide.", show_default=False),
]
HeadsOption = Annotated[str, typer.Option(metavar="keep|none|HEAD,HEAD", help="Which heads of an encoder to keep.")]
JsonOption = Annotated[
    Path | None,
    typer.Option("--json", metavar="FILE", help="Write the result as JSON; - prints it instead of tables."),
]
QuietOption = Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")]
SeedOption = Annotated[int, typer.Option(min=0, help="Seed of random weights and inputs.")]


def configuration(base: str | None, fields: Sequence[str] | None) -> dict[str, Any] | None:
    """Return the configuration fields of ``--config`` and ``--set``; ``--set`` wins. Return None without either.

    Raises:
        ConfigError: ``base`` is neither a recipe nor a JSON file of fields, or one of ``fields`` is not FIELD=VALUE.
    """
    if base is None and not fields:
        return None
    base_fields: dict[str, Any] = {}
    if base is not None:
        base_fields = recipe(base).to_dict() if base in recipes() else _read_fields(Path(base))
    return base_fields | {name: _value(text) for name, text in name_value_pairs("--set", fields).items()}


def heads_to_keep(heads: str) -> list[str] | None:
    """Return the names of the heads to keep; None keeps all."""
    if heads == "keep":
        return None
    return [] if heads == "none" else [head.strip() for head in heads.split(",")]


def name_value_pairs(option: str, texts: Sequence[str] | None) -> dict[str, str]:
    """Return the repeated NAME=VALUE of an option as a dictionary.

    Raises:
        ConfigError: a text has no name or no "=", or a name occurs twice.
    """
    pairs: dict[str, str] = {}
    for text in texts or []:
        name, separator, value = text.partition("=")
        if not (name and separator):
            raise ConfigError(f"{option} is {text!r}; expected NAME=VALUE")
        if name in pairs:
            raise ConfigError(f"{option} {name} is given twice; give it once")
        pairs[name] = value
    return pairs


def _read_fields(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = (error.strerror or error) if isinstance(error, OSError) else f"it is not JSON ({error})"
        raise ConfigError(
            f"cannot read {path}: {reason}; pass a JSON file with fields of a configuration, or one of the recipes "
            f"{', '.join(recipes())}"
        ) from error
    if isinstance(content, dict) and "config" in content:
        content = content["config"]  # a file that inspect --json wrote
    if isinstance(content, dict) and "model_type" in content:
        raise ConfigError(f"{path} is the config.json of transformers; pass its folder, with the weights, as MODEL")
    if not isinstance(content, dict):
        raise ConfigError(f"cannot read {path}: it holds no JSON object; pass one with fields of a configuration")
    return content


def _value(text: str) -> Any:
    """Parse a JSON number, list, true, false or null; return anything else as text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
