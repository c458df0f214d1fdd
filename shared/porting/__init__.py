"""Porting: read weights in any dialect as a checkpoint, and write a checkpoint in any dialect.

A dialect is how a library names and lays out tensors (``dialects/``); a container is how a file stores them
(``containers/``).
"""

from .conversion import convert
from .heads import with_heads
from .plan import File, PortPlan, describe
from .port import Recognised, candidates, check_target, find_dialect, read, recognise, write

__all__ = [
    "File",
    "PortPlan",
    "Recognised",
    "candidates",
    "check_target",
    "convert",
    "describe",
    "find_dialect",
    "read",
    "recognise",
    "with_heads",
    "write",
]
