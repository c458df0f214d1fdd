"""``shared/memory.py``: a process reuses the memory that it frees."""

import platform
import subprocess
import sys

import pytest

FAULTS_OF_A_NEW_ARRAY = """
import resource
import numpy as np
from triglot.shared.memory import keep_freed_memory
if {keep}:
    keep_freed_memory()
np.ones(2**21)  # 16 MB
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    np.ones(2**21)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_a_freed_array_is_used_again():
    kept, returned = (
        int(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)
        for code in (FAULTS_OF_A_NEW_ARRAY.format(keep=keep) for keep in (True, False))
    )
    assert kept < 10 < returned
