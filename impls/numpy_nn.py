"""The layers that a framework would bring and NumPy lacks: the least that the reference needs of an ``nn`` module.

Sums go through ``matmul`` and ``mean`` and ``softmax``, whose order of summation can be shuffled: the rounding
errors of a correct float32 implementation are measured by running the same code with other orders
(``permuted_contractions``). Nothing here uses ``np.var``, ``np.abs`` or anything else that is silently wrong for
complex numbers, so that derivatives by the complex step hold.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np
from scipy.special import erf

Array = np.ndarray

_order: ContextVar[np.random.Generator | None] = ContextVar("order", default=None)


@contextmanager
def permuted_contractions(seed: int) -> Iterator[None]:
    """Inside, every sum over an axis runs in a random order, a new one for each sum."""
    token = _order.set(np.random.default_rng(seed))
    try:
        yield
    finally:
        _order.reset(token)


def matmul(left: Array, right: Array) -> Array:
    """The matrix product, (..., m, n) by (..., n, p)."""
    generator = _order.get()
    if generator is None:
        return left @ right
    order = generator.permutation(left.shape[-1])
    return left[..., order] @ right[..., order, :]


def linear(x: Array, weight: Array, bias: Array | None) -> Array:
    """``x @ weight + bias``; x (..., in), weight (in, out).

    Some kernels begin their sum with the bias: every partial sum is then as large as it, and rounded so. Inside
    ``permuted_contractions`` the bias is therefore a term like any other, somewhere in the sum.
    """
    rows = x.reshape(-1, x.shape[-1])  # one large product, not one for each sequence
    if bias is not None and _order.get() is not None:
        y = matmul(np.hstack([rows, np.ones_like(rows[:, :1])]), np.vstack([weight, bias]))
    else:
        y = matmul(rows, weight)
        y = y if bias is None else y + bias
    return y.reshape(*x.shape[:-1], -1)


def mean(x: Array) -> Array:
    """The mean over the last axis, which is kept with size 1."""
    return _sum(x) / x.shape[-1]


def softmax(x: Array) -> Array:
    """Exponentials over their sum, along the last axis."""
    exponentials = np.exp(x - np.real(x).max(axis=-1, keepdims=True))
    return exponentials / _sum(exponentials)


def log_softmax(x: Array) -> Array:
    """The logarithm of the softmax, along the last axis."""
    shifted = x - np.real(x).max(axis=-1, keepdims=True)
    return shifted - np.log(_sum(np.exp(shifted)))


def relu(x: Array) -> Array:
    """The positive part."""
    return np.where(np.real(x) > 0, x, 0)


def gelu(x: Array, approximate: str) -> Array:
    """Gaussian error linear unit (Hendrycks and Gimpel 2016): "none" by the error function, "tanh" approximated."""
    if approximate == "tanh":
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi).astype(np.real(x).dtype) * (x + 0.044715 * x * x * x)))
    return 0.5 * x * (1 + erf(x * np.sqrt(0.5).astype(np.real(x).dtype)))


def tanh(x: Array) -> Array:
    """The hyperbolic tangent.

    Where it saturates, NumPy gives exactly 1, and no order of summation shows that the kernels of frameworks do not:
    XLA's on a CPU was measured to be off by 6.9 u in float64 (from |x| = 20 on) and by 3.8 u in float32 (at |x| = 8),
    PyTorch's by 1 u. So inside ``permuted_contractions`` a random share of the results is the next number towards zero.
    """
    y = np.tanh(x)
    generator = _order.get()
    if generator is None:
        return y
    return np.where(generator.random(y.shape) < generator.random(), np.nextafter(y, np.zeros_like(y)), y)


class Linear:
    """``x @ weight + bias``; weight (in, out)."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        self.weight = np.zeros((in_features, out_features))
        self.bias = np.zeros(out_features) if bias else None

    def __call__(self, x: Array) -> Array:
        return linear(x, self.weight, self.bias)


class Embedding:
    """Rows of a table by id; weight (vocabulary, D)."""

    def __init__(self, vocabulary: int, size: int) -> None:
        self.weight = np.zeros((vocabulary, size))

    def __call__(self, ids: Array) -> Array:
        return self.weight[ids]


class Dropout:
    """Nothing is dropped: the reference runs in inference."""

    def __init__(self, rate: float) -> None:
        self.rate = rate

    def __call__(self, x: Array) -> Array:
        return x


def _sum(x: Array) -> Array:
    generator = _order.get()
    if generator is not None:
        x = x[..., generator.permutation(x.shape[-1])]
    return x.sum(axis=-1, keepdims=True)
