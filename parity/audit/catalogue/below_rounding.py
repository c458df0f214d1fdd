"""Changes that are smaller than the rounding errors of correct code, so that float32 cannot show them."""

from triglot.parity.audit.bug import Bug

_PLACE = "encoder.layers.0.feed_forward.activation"

CHANGES = {
    # The error of the GELU is 0.5 * 3e-7 * x, which is 2.5 roundings of x.
    "erf off by 3e-7": Bug(
        _PLACE,
        "feed_forward.py",
        {'partial(functional.gelu, approximate="none")': "lambda x: functional.gelu(x) + 1.5e-7 * x"},
        {"partial(functional.gelu, approximate=False)": "lambda x: functional.gelu(x) + 1.5e-7 * x"},
        {"partial(jax.nn.gelu, approximate=False)": "lambda x: jax.nn.gelu(x, approximate=False) + 1.5e-7 * x"},
    ),
    # At -5 a GELU is -1.4e-6, which is 4 roundings of a value of 6.
    "GELU of zero below -5": Bug(
        _PLACE,
        "feed_forward.py",
        {'partial(functional.gelu, approximate="none")': "lambda x: functional.gelu(x) * (x > -5)"},
        {"partial(functional.gelu, approximate=False)": "lambda x: functional.gelu(x) * (x > -5).astype(x.dtype)"},
        {"partial(jax.nn.gelu, approximate=False)": "lambda x: jax.nn.gelu(x, approximate=False) * (x > -5)"},
    ),
}
