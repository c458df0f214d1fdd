"""What the reference needs of an ``nn`` module: layers and functions that NumPy lacks, for inference only.

Two properties have to hold for every function here:

- Sums go through ``matmul``, ``linear``, ``mean``, ``softmax`` or ``log_softmax``. ``permuted_contractions`` can then
  shuffle their order, which shows the rounding errors that a correct implementation may have.
- Nothing uses ``np.var``, ``np.abs`` or another function that is silently wrong for complex numbers, because
  ``training.derivative`` takes complex steps.

Shapes: D features; in, out the features that a linear layer reads and returns.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np
from numpy import ndarray
from scipy.special import erf

_generator: ContextVar[np.random.Generator | None] = ContextVar("generator", default=None)


@contextmanager
def permuted_contractions(seed: int) -> Iterator[None]:
    """Inside the context, compute every sum over an axis in a random order, drawn again for each sum."""
    token = _generator.set(np.random.default_rng(seed))
    try:
        yield
    finally:
        _generator.reset(token)


def matmul(left: ndarray, right: ndarray) -> ndarray:
    """Return the matrix product of left (..., m, n) and right (..., n, p)."""
    generator = _generator.get()
    if generator is None:
        return left @ right
    order = generator.permutation(left.shape[-1])
    return left[..., order] @ right[..., order, :]


def linear(x: ndarray, weight: ndarray, bias: ndarray | None) -> ndarray:
    """Return ``x @ weight + bias``, (..., out). x: (..., in). weight: (in, out). bias: (out,).

    Some kernels start their sums with the bias, so that a large bias makes every partial sum round more coarsely.
    Inside ``permuted_contractions`` the bias is therefore a term of the sum, at a random place.
    """
    rows = x.reshape(-1, x.shape[-1])  # one large product instead of one for each sequence
    if bias is not None and _generator.get() is not None:
        y = matmul(np.hstack([rows, np.ones_like(rows[:, :1])]), np.vstack([weight, bias]))
    else:
        y = matmul(rows, weight)
        y = y if bias is None else y + bias
    return y.reshape(*x.shape[:-1], -1)


def mean(x: ndarray) -> ndarray:
    """Return the mean over the last axis, (..., 1). x: (..., D)."""
    return _sum(x) / x.shape[-1]


def softmax(x: ndarray) -> ndarray:
    """Return the softmax over the last axis."""
    exponentials = np.exp(x - np.real(x).max(axis=-1, keepdims=True))
    return exponentials / _sum(exponentials)


def log_softmax(x: ndarray) -> ndarray:
    """Return the logarithm of the softmax over the last axis."""
    shifted = x - np.real(x).max(axis=-1, keepdims=True)
    return shifted - np.log(_sum(np.exp(shifted)))


def relu(x: ndarray) -> ndarray:
    """Return x where it is positive, else 0."""
    return np.where(np.real(x) > 0, x, 0)


def gelu(x: ndarray, approximate: str) -> ndarray:
    """Return the Gaussian error linear unit of x (Hendrycks and Gimpel 2016).

    approximate: "none" for the exact one, by the error function, or "tanh" for its approximation.
    """
    if approximate == "tanh":
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi).astype(np.real(x).dtype) * (x + 0.044715 * x * x * x)))
    return 0.5 * x * (1 + erf(x * np.sqrt(0.5).astype(np.real(x).dtype)))


def tanh(x: ndarray) -> ndarray:
    """Return the hyperbolic tangent of x.

    Where tanh saturates, NumPy returns exactly 1, but the kernels of frameworks do not. On a CPU, XLA's was measured
    to be off by 6.9 u in float64 (from |x| = 20) and by 3.8 u in float32 (at |x| = 8), PyTorch's by 1 u. No order of
    summation shows this error, so inside ``permuted_contractions`` a random share of the results moves to the next
    number towards zero.
    """
    y = np.tanh(x)
    generator = _generator.get()
    if generator is None:
        return y
    return np.where(generator.random(y.shape) < generator.random(), np.nextafter(y, np.zeros_like(y)), y)


class Linear:
    """A linear layer, ``x @ weight + bias``. weight: (in, out). bias: (out,), or None."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        self.weight = np.zeros((in_features, out_features))
        self.bias = np.zeros(out_features) if bias else None

    def __call__(self, x: ndarray) -> ndarray:
        """Return (..., out). x: (..., in)."""
        return linear(x, self.weight, self.bias)


class Embedding:
    """A table with one row for each id. weight: (vocabulary, D)."""

    def __init__(self, vocabulary: int, size: int) -> None:
        self.weight = np.zeros((vocabulary, size))

    def __call__(self, ids: ndarray) -> ndarray:
        """Return the rows of the ids, (..., D). ids: (...)."""
        return self.weight[ids]


class Dropout:
    """The identity, because dropout does nothing in inference."""

    def __init__(self, rate: float) -> None:
        self.rate = rate

    def __call__(self, x: ndarray) -> ndarray:
        """Return x."""
        return x


def _sum(x: ndarray) -> ndarray:
    """Return the sum over the last axis, which keeps size 1."""
    generator = _generator.get()
    if generator is not None:
        x = x[..., generator.permutation(x.shape[-1])]
    return x.sum(axis=-1, keepdims=True)
