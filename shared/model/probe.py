"""The probe: how a model shows its intermediate values, in every framework alike.

Each module takes ``probe=None`` as its last argument and passes its values through ``observe``; a module hands
``under(probe, name)`` to its children. Without a probe both are the identity. With one, every value is recorded under
its full name and may be replaced on the way: ``record`` holds what the model computed, the model goes on with what
``replacements`` says. Feeding the truth for every name therefore shows the error that each step makes on its own.
None of the functions looks at the values, so all of them also work while a compiler traces the model.

A probe also brings the masks of dropout, drawn in NumPy (``dropouts.py``): so training drops out the same numbers in
every framework.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


class Probe:
    """Records values by name; hands on replacements, and the masks of dropout."""

    def __init__(
        self, replacements: Mapping[str, Any] | None = None, dropout_masks: Mapping[str, Any] | None = None
    ) -> None:
        self.record: dict[str, Any] = {}
        self.replacements: Mapping[str, Any] = replacements or {}
        self.dropout_masks: Mapping[str, Any] = dropout_masks or {}
        self._path = ""

    def under(self, name: str) -> Probe:
        """The same probe, one step down the attribute path."""
        child = type(self)(self.replacements, self.dropout_masks)
        child.record = self.record
        child._path = f"{self._path}{name}."
        return child

    def observe(self, name: str, value: Any) -> Any:
        """Record ``value`` as ``name``; return its replacement, or itself."""
        full_name = self._path + name
        self.record[full_name] = value
        return self.replacements.get(full_name, value)

    def dropout_mask(self, name: str) -> Any:
        """What to multiply a value with: 0 where it drops out, else one over the share that stays; None: not given."""
        return self.dropout_masks.get(self._path + name)


def observe(probe: Probe | None, name: str, value: Any) -> Any:
    """Show ``value`` to the probe, if there is one, and go on with what it returns."""
    return value if probe is None else probe.observe(name, value)


def dropped(probe: Probe | None, name: str, value: Any, dropout: Callable[[Any], Any]) -> Any:
    """``value`` after dropout: by the mask that the probe brings, else by the framework's own ``dropout``."""
    mask = None if probe is None else probe.dropout_mask(name)
    return dropout(value) if mask is None else value * mask


def under(probe: Probe | None, name: str) -> Probe | None:
    """The probe for the child module ``name``."""
    return None if probe is None else probe.under(name)
