"""Read the JSON files of model folders."""

import json
from pathlib import Path
from typing import Any, cast

from triglot.shared.errors import PortingError


def read_object(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises:
        PortingError: the file is missing, is unreadable, is not a JSON object, or repeats a key.
    """
    content = _read(path)
    if not isinstance(content, dict):
        raise PortingError(f"cannot read {path}: it is not a JSON object; restore the file")
    return cast("dict[str, Any]", content)


def read_list(path: Path) -> list[Any]:
    """Return the list in a JSON file.

    Raises:
        PortingError: the file is missing, is unreadable, is not a JSON list, or repeats a key.
    """
    content = _read(path)
    if not isinstance(content, list):
        raise PortingError(f"cannot read {path}: it is not a JSON list; restore the file")
    return cast("list[Any]", content)


def stays_inside(name: object) -> bool:
    """Return whether a path in a JSON file is relative and stays in its folder, on every operating system."""
    if not isinstance(name, str) or set(name) & set("\\:\0"):  # C:\\ is absolute on Windows
        return False
    return not name.startswith("/") and ".." not in name.split("/")


def _read(path: Path) -> object:
    try:
        return json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_without_repetition)
    except FileNotFoundError as error:
        raise PortingError(f"{path} is missing; save the model with its configuration, or give the file") from error
    except (OSError, ValueError, RecursionError) as error:
        raise PortingError(f"cannot read {path}: {error}; restore the file") from error


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for name, value in pairs:
        if name in content:
            raise ValueError(f"{name!r:.80} occurs twice")
        content[name] = value
    return content
