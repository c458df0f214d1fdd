"""Folders that other libraries saved, and the path of a ``.pt`` file."""

import pytest


@pytest.fixture
def path(tmp_path):
    """The path of a ``.pt`` file. Tests of other containers have a ``path`` of their own."""
    return tmp_path / "run.pt"
