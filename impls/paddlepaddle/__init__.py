"""The implementation in PaddlePaddle."""

import contextlib
import io
import warnings

# The import prints notes about threads and a missing ccache on standard error. They do not concern users of Triglot,
# and would hide the messages that do.
with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import paddle as paddle
