"""The implementation in PaddlePaddle."""

import contextlib
import io
import os
import sys
import warnings

from triglot.shared.chosen_threads import CHOSEN_THREADS

_threads = CHOSEN_THREADS if "paddle" in sys.modules else os.environ.get("OMP_NUM_THREADS")

# The import prints notes about threads and a missing ccache on standard error. They do not concern users of Triglot,
# and would hide the messages that do.
with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import paddle as paddle

# If it is unset, the import sets it to 1, also for the inference engine and for frameworks that are imported later.
if _threads is None and os.environ.get("OMP_NUM_THREADS") == "1":
    os.environ.pop("OMP_NUM_THREADS", None)
