"""The JSON files of model folders."""

import json
from pathlib import Path
from typing import Any, cast

from triglot.shared.errors import PortingError


def read_object(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises:
        PortingError: the file is missing, unreadable or no JSON object, or an object in it has a key twice.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_without_repetition)
    except FileNotFoundError as error:
        raise PortingError(f"{path} is missing; save the model with its configuration, or give the file") from error
    except (OSError, ValueError, RecursionError) as error:
        raise PortingError(f"cannot read {path}: {error}; restore the file") from error
    if not isinstance(content, dict):
        raise PortingError(f"cannot read {path}: it is not a JSON object; restore the file")
    return cast("dict[str, Any]", content)


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in content if names.count(name) > 1)
        raise ValueError(f"{twice!r:.80} occurs twice")
    return content
