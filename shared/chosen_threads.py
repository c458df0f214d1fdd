"""The user's ``OMP_NUM_THREADS``, or None if it is not set.

Importing paddle sets the variable to 1. So ``import triglot`` loads this module at once, before a program that imports
paddle later. If paddle was imported first, the value may be paddle's.
"""

import os

CHOSEN_THREADS = os.environ.get("OMP_NUM_THREADS")
