"""``shared/memory.py``: a process reuses the memory that it frees."""

import os
import platform
import subprocess
import sys

import pytest

from triglot.impls import installed

LIBRARY, VERSION = platform.libc_ver()
pytestmark = pytest.mark.skipif(
    LIBRARY != "glibc" or tuple(map(int, VERSION.split("."))) < (2, 36),
    reason="needs a glibc that can keep 40 MB: 2.36 or newer",
)

FAULTS_OF_NEW_ARRAYS = """
import resource
import numpy as np
import triglot
{before}
np.ones(5 * 2**20)  # 40 MB, which glibc never keeps by default
first = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    np.ones(5 * 2**20)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - first)
"""


def faults(before: str, **variables: str) -> int:
    """Return how many pages the system provides for ten arrays in a new process that has run ``before``."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_TUNABLES"))}
    command = [sys.executable, "-c", FAULTS_OF_NEW_ARRAYS.format(before=before)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True, env=own | variables).stdout)


def build(mode: str) -> str:
    """Return the code that builds a model in an installed framework."""
    return f"triglot.build({installed()[0]!r}, triglot.initialize('bert-base-tiny'), mode={mode!r})"


@pytest.mark.parametrize("mode", ["jit", "compiled"])
def test_a_fast_mode_uses_freed_memory_again(mode: str):
    assert faults(build(mode)) < 10


def test_eager_mode_leaves_the_allocator_as_it_is():
    assert faults(build("eager")) > 100  # 20 large pages per array, at least


@pytest.mark.parametrize(
    "settings",
    [{"MALLOC_TRIM_THRESHOLD_": "131072"}, {"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=131072"}],
    ids=str,
)
def test_the_settings_of_the_user_win(settings: dict[str, str]):
    assert faults(build("compiled"), **settings) > 100  # 20 large pages per array, at least


def test_settings_of_other_things_change_nothing():
    assert faults(build("compiled"), MALLOC_ARENA_MAX="2", GLIBC_TUNABLES="glibc.malloc.tcache_count=0") < 10
