"""The probe: how a model shows its intermediate values, the same way in every framework.

Each module takes ``probe=None`` as its last argument, passes its values through ``observe``, and passes
``under(probe, name)`` to its children. Without a probe these functions do nothing. With a probe, every value is
recorded under its full name and may be replaced: ``record`` holds what the model computed, and the model continues with
the entry of ``replacements``. So replacing every value shows the error that each step makes by itself.
None of these functions looks at the values, so they also work while a compiler traces the model.

A probe also holds the dropout masks, drawn in NumPy (``shared/training/dropout_masks.py``), so that training drops out
the same numbers in every framework.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from typing import Any


class Probe:
    """Records values by name, and holds replacements and dropout masks.

    ``copy`` copies a value for the record, so that a later operation in place cannot change what was recorded. Arrays
    of JAX never change, so they need no copy.
    """

    def __init__(
        self,
        replacements: Mapping[str, Any] | None = None,
        dropout_masks: Mapping[str, Any] | None = None,
        copy: Callable[[Any], Any] | None = None,
    ) -> None:
        self.record: dict[str, Any] = {}
        self.replacements: Mapping[str, Any] = replacements or {}
        self.dropout_masks: Mapping[str, Any] = dropout_masks or {}
        self.copy = copy
        self._path = ""

    def under(self, name: str) -> Probe:
        """Return the same probe, one step down the attribute path."""
        child = copy(self)
        child._path = f"{self._path}{name}."
        return child

    def observe(self, name: str, value: Any) -> Any:
        """Record ``value`` as ``name``, and return its replacement or itself."""
        full_name = self._path + name
        self.record[full_name] = self.copy(value) if self.copy else value
        return self.replacements.get(full_name, value)

    def dropout_mask(self, name: str) -> Any:
        """Return the factors of a value: 0 where it is dropped, else 1 / (1 - rate). None: there is no mask."""
        return self.dropout_masks.get(self._path + name)


def observe(probe: Probe | None, name: str, value: Any) -> Any:
    """Show ``value`` to the probe, if there is one, and return what the model continues with."""
    return value if probe is None else probe.observe(name, value)


def dropped(probe: Probe | None, name: str, value: Any, dropout: Callable[[Any], Any]) -> Any:
    """Return ``value`` after dropout: by the mask of the probe, or else by the framework's own ``dropout``."""
    mask = None if probe is None else probe.dropout_mask(name)
    return dropout(value) if mask is None else value * mask


def under(probe: Probe | None, name: str) -> Probe | None:
    """Return the probe for the child module ``name``."""
    return None if probe is None else probe.under(name)
