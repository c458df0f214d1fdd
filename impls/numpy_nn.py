"""What the reference needs of an ``nn`` module: layers and functions that NumPy lacks, for inference only.

Two properties have to hold for every function here:

- Sums go through ``matmul``, ``linear``, ``total``, ``mean``, ``softmax`` or ``log_softmax``.
  ``permuted_contractions`` can then shuffle their order, which shows the rounding errors that a correct implementation
  may have.
- Outside that context, nothing uses ``np.var``, ``np.abs`` or another function that is silently wrong for complex
  numbers, because ``training.derivative`` takes complex steps.

Shapes: D features; in, out the features that a linear layer reads and returns.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np
from numpy import ndarray

from triglot.shared.arrays import HALVES, representable

PARTS = 4  # parts of the rows of a sum, each with a random order of its own

_generator: ContextVar[np.random.Generator | None] = ContextVar("generator", default=None)


_dtype: ContextVar[str] = ContextVar("dtype", default="float32")


@contextmanager
def permuted_contractions(seed: int, dtype: str = "float32") -> Iterator[None]:
    """Inside the context, compute every sum over an axis in a random order, drawn again for each sum.

    ``dtype``: the number format whose roundings are imitated, if it has 16 bits.
    """
    tokens = _generator.set(np.random.default_rng(seed)), _dtype.set(dtype)
    try:
        yield
    finally:
        _generator.reset(tokens[0])
        _dtype.reset(tokens[1])


def matmul(left: ndarray, right: ndarray) -> ndarray:
    """Return the matrix product of left (..., m, n) and right (..., n, p)."""
    generator, dtype = _generator.get(), _dtype.get()
    if generator is None:
        return left @ right
    if dtype in HALVES:  # what a product reads was stored in 16 bits, for example a scaled query
        left, right = representable(left, dtype), representable(right, dtype)
    parts: list[ndarray] = []
    for part, order in _orders(left, generator):
        matrix = right if right.ndim == 2 else right[part]
        cut = int(generator.integers(len(order) + 1))  # equal terms round alike in every order, but not in two sums
        sums = [left[part][..., terms] @ matrix[..., terms, :] for terms in (order[:cut], order[cut:])]
        parts.append(sums[0] + sums[1])
    return np.concatenate(parts)


def linear(x: ndarray, weight: ndarray, bias: ndarray | None) -> ndarray:
    """Return ``x @ weight + bias``, (..., out). x: (..., in). weight: (in, out). bias: (out,).

    Some kernels start their sums with the bias, so that a large bias makes every partial sum round more coarsely.
    Inside ``permuted_contractions`` the bias is therefore a term of the sum, at a random place. In 16 bits other
    kernels round the product before they add the bias, and all round the result.
    """
    rows = x.reshape(-1, x.shape[-1])  # one large product instead of one for each sequence
    generator, dtype = _generator.get(), _dtype.get()
    if bias is not None and generator is not None and dtype in HALVES and generator.random() < 0.5:
        y = representable(matmul(rows, weight), dtype) + bias
    elif bias is not None and generator is not None:
        y = matmul(np.hstack([rows, np.ones_like(rows[:, :1])]), np.vstack([weight, bias]))
    else:
        y = matmul(rows, weight)
        y = y if bias is None else y + bias
    if generator is not None and dtype in HALVES:
        y = representable(y, dtype)
    return y.reshape(*x.shape[:-1], -1)


def total(x: ndarray) -> ndarray:
    """Return the sum over the last axis, (..., 1). x: (..., D)."""
    generator = _generator.get()
    if generator is None:
        return x.sum(axis=-1, keepdims=True)
    rows = x.reshape(-1, x.shape[-1])
    parts: list[ndarray] = []
    for part, order in _orders(rows, generator):
        cut = int(generator.integers(len(order) + 1))
        first, second = (rows[part][:, terms].sum(axis=-1) for terms in (order[:cut], order[cut:]))
        parts.append(first + second)
    return np.concatenate(parts).reshape(*x.shape[:-1], 1)


def mean(x: ndarray) -> ndarray:
    """Return the mean over the last axis, (..., 1). x: (..., D).

    Kernels that update a mean term by term round it at every step. No order of a sum shows this if all terms are equal,
    so inside ``permuted_contractions`` the mean also moves by up to one unit in the last place.
    """
    y = total(x) / x.shape[-1]
    generator = _generator.get()
    if generator is None:
        return y
    return y * (1 + generator.integers(-1, 2, y.shape) * np.finfo(y.dtype).eps).astype(y.dtype)


def variance(x: ndarray) -> ndarray:
    """Return the biased variance over the last axis, (..., 1). x: (..., D).

    Some kernels add up in a wider format. If all entries are equal, their variance is then exactly zero, although their
    mean is rounded. So inside ``permuted_contractions``, a random half of the variances is computed like that.
    """
    centred = x - mean(x)  # not the mean that the caller has: kernels compute both at once, and round them separately
    y = mean(centred * centred)
    generator = _generator.get()
    if generator is None:
        return y
    wider = np.longdouble if x.dtype == np.float64 else np.float64
    exact = x.astype(wider).var(axis=-1, keepdims=True).astype(y.dtype)
    return np.where(generator.random(y.shape) < 0.5, exact, y)


def softmax(x: ndarray) -> ndarray:
    """Return the softmax over the last axis."""
    exponentials = np.exp(x - np.real(x).max(axis=-1, keepdims=True))
    return exponentials / total(exponentials)


def log_softmax(x: ndarray) -> ndarray:
    """Return the logarithm of the softmax over the last axis."""
    shifted = x - np.real(x).max(axis=-1, keepdims=True)
    return shifted - np.log(total(np.exp(shifted)))


def relu(x: ndarray) -> ndarray:
    """Return x where it is positive, else 0. NaN stays NaN."""
    return np.where(np.real(x) <= 0, 0, x)


def gelu(x: ndarray, approximate: str) -> ndarray:
    """Return the Gaussian error linear unit of x (Hendrycks and Gimpel 2016).

    approximate: "none" for the exact one, by the error function, or "tanh" for its approximation.
    """
    if approximate == "tanh":
        return 0.5 * x * (1 + tanh(np.sqrt(2 / np.pi).astype(np.real(x).dtype) * (x + 0.044715 * x * x * x)))
    # Most processes that import this module never compute an exact GELU, and SciPy takes 0.15 seconds to load.
    from scipy.special import erf  # noqa: PLC0415

    return 0.5 * x * (1 + _rounded_differently(erf(x * np.sqrt(0.5).astype(np.real(x).dtype))))


def tanh(x: ndarray) -> ndarray:
    """Return the hyperbolic tangent of x.

    Where tanh saturates, NumPy returns exactly 1, but the kernels of frameworks do not. On a CPU, XLA's was measured
    to be off by 6.9 u in float64 (from |x| = 20) and by 3.8 u in float32 (at |x| = 8), PyTorch's by 1 u.
    """
    return _rounded_differently(np.tanh(x))


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


def _rounded_differently(y: ndarray) -> ndarray:
    """Return y; inside ``permuted_contractions``, a random share of it moved to the next number towards zero.

    No order of summation shows how a kernel rounds a function, least of all where the function is saturated.
    """
    generator = _generator.get()
    if generator is None:
        return y
    return np.where(generator.random(y.shape) < generator.random(), np.nextafter(y, np.zeros_like(y)), y)


def _orders(x: ndarray, generator: np.random.Generator) -> Iterator[tuple[slice, ndarray]]:
    """Yield parts of the first axis of x, each with an order of its own for the sums over the last axis.

    Rows that are equal get different orders, so they round differently, as they do in the kernels of frameworks.
    """
    size = -(-len(x) // PARTS)
    for start in range(0, len(x), size):
        yield slice(start, start + size), generator.permutation(x.shape[-1])
