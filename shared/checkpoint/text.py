"""Text settings: how text becomes the tokens of a sentence embedding."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, get_args

from triglot.shared.errors import CheckpointError

Similarity = Literal["cosine", "dot", "euclidean", "manhattan"]

# The parser of the manifest limits how often these characters occur, and has to allow for those in the settings.
MARKS = "{[,"
MOST_MARKS = 4_000
_LONGEST = 1 << 17  # characters of JSON


@dataclass(frozen=True)
class TextSettings:
    """How text becomes tokens, and how vectors are meant to be compared.

    ``max_tokens``: the length to which longer texts are cut, special tokens included. ``prompts``: texts to put before
    a text, by name. ``default_prompt``: the name of the prompt to use if the user names none; None: no prompt.
    ``similarity``: how vectors are meant to be compared; None: the model does not say.

    Raises:
        CheckpointError: a setting is impossible, or the prompts are too long.
    """

    max_tokens: int
    prompts: Mapping[str, str]
    default_prompt: str | None = None
    similarity: Similarity | None = None

    def __post_init__(self) -> None:
        if type(self.max_tokens) is not int or self.max_tokens < 1:
            raise _refused("max_tokens", self.max_tokens, "a whole number of at least 1")
        is_mapping = isinstance(self.prompts, Mapping)  # pyright: ignore[reportUnnecessaryIsInstance]
        if not is_mapping or not all(_is_unicode(text) for entry in self.prompts.items() for text in entry):
            raise _refused("prompts", self.prompts, "Unicode texts by name")
        if self.default_prompt is not None and self.default_prompt not in list(self.prompts):  # JSON may hold a list
            raise _refused("default_prompt", self.default_prompt, f"None, or one of {', '.join(self.prompts):.200}")
        if self.similarity is not None and self.similarity not in (names := get_args(Similarity)):
            raise _refused("similarity", self.similarity, f"None, or one of {', '.join(names)}")
        content = json.dumps(self.to_dict())
        if len(content) > _LONGEST or sum(map(content.count, MARKS)) > MOST_MARKS:
            raise CheckpointError(
                f"the prompts take {len(content):,} characters; expected at most {_LONGEST:,}, and at most "
                f"{MOST_MARKS:,} commas and opening brackets; leave some prompts out"
            )
        object.__setattr__(self, "prompts", MappingProxyType(dict(self.prompts)))

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as plain JSON types."""
        return {
            "max_tokens": self.max_tokens,
            "prompts": dict(self.prompts),
            "default_prompt": self.default_prompt,
            "similarity": self.similarity,
        }


def _is_unicode(text: object) -> bool:
    """Return whether JSON preserves ``text``. It would join the halves of a surrogate pair."""
    return isinstance(text, str) and not any("\ud800" <= letter <= "\udfff" for letter in text)


def _refused(name: str, value: object, expected: str) -> CheckpointError:
    return CheckpointError(f"{name} is {value!r:.80}; expected {expected}; correct the text settings")
