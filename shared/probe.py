"""The probe: how a model shows its intermediate values, in every framework alike.

Each module takes ``probe=None`` as its last argument and passes its values through ``observe``; a module hands
``under(probe, name)`` to its children. Without a probe both are the identity. With one, every value is recorded under
its full name and may be replaced on the way: ``record`` holds what the model computed, the model goes on with what
``replacements`` says. Feeding the truth for every name therefore shows the error that each step makes on its own.
Neither function looks at the values, so both also work while a compiler traces the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Probe:
    """Records values by name; hands on replacements."""

    def __init__(self, replacements: Mapping[str, Any] | None = None) -> None:
        self.record: dict[str, Any] = {}
        self.replacements: Mapping[str, Any] = replacements or {}
        self._path = ""

    def under(self, name: str) -> Probe:
        """The same probe, one step down the attribute path."""
        child = type(self)(self.replacements)
        child.record = self.record
        child._path = f"{self._path}{name}."
        return child

    def observe(self, name: str, value: Any) -> Any:
        """Record ``value`` as ``name``; return its replacement, or itself."""
        full_name = self._path + name
        self.record[full_name] = value
        return self.replacements.get(full_name, value)


def observe(probe: Probe | None, name: str, value: Any) -> Any:
    """Show ``value`` to the probe, if there is one, and go on with what it returns."""
    return value if probe is None else probe.observe(name, value)


def under(probe: Probe | None, name: str) -> Probe | None:
    """The probe for the child module ``name``."""
    return None if probe is None else probe.under(name)
