"""The implementation in PaddlePaddle."""

import contextlib
import io
import warnings

# Its import says on standard error that there are threads, and that there is no ccache: no concern of who asked for a
# model, and lost among what is meant for them.
with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import paddle as paddle
