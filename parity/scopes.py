"""Scopes: which entries of a value share a budget. The whole value does, and so may each channel and each row.

One budget for a whole value is set by its largest entry, which hides errors elsewhere: a bias that bans a token with
-1e9 would allow every other score to be off by hundreds. So a step is also judged in narrower scopes, where its entries
are alike:

``channel``  one entry of the last axis (of a head, if there are heads), over all rows and tokens
``row``      one row of the batch
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from triglot.shared.arrays import HALVES, Array, Bools
from triglot.shared.model.config import ModelConfig
from triglot.shared.model.schema import NamedValue

from .budgets import LEAST_TOKENS, NOISE_FACTOR, ROW_NOISE_FACTOR, budget, budgets

# Linear layers, norms and sums treat all tokens of a channel alike. An activation or a softmax does not: where most
# tokens are close to zero, few are left to measure the noise.
ALIKE = (
    *("sum", "norm", "residual", "query", "key", "value", "inner", "transform", "output", "decoded"),
    *("projection", "linear", "logits", "masked_lm", "next_sentence", "sequence_classifier", "token_classifier"),
)


@dataclass(frozen=True)
class Scope:
    """Groups of entries: those that have the same place along ``axes``. ``factor`` multiplies the noise."""

    name: str
    axes: tuple[int, ...]
    factor: float


@dataclass(frozen=True)
class Share:
    """The entries that use up most of their budget: where they are, and their error, noise and budget."""

    where: str
    error: float
    noise: float
    budget: float

    @property
    def used(self) -> float:
        """The share of the budget that the error uses up."""
        if self.error == 0:
            return 0.0
        return self.error / self.budget if self.budget else float("inf")


def scopes_of(named: NamedValue | None, config: ModelConfig, dtype: str) -> list[Scope]:
    """Return the scopes of a named value that are narrower than the whole."""
    if named is None:
        return []
    step = named.name.rsplit(".", 1)[-1]
    if step == "sum" and dtype in HALVES:
        return []  # embeddings are rounded before they are added, and in a channel they may cancel
    rectified = named.name.endswith("attention.output") and config.attention_output_activation == "relu"
    if step not in ALIKE or rectified:
        return []
    last = len(named.axes) - 1
    channel = (1, last) if "head" in named.axes else (last,)
    return [Scope("channel", channel, NOISE_FACTOR), Scope("row", (0,), ROW_NOISE_FACTOR)]


def worst_share(
    scopes: Sequence[Scope], error: Array, noise: Array, truth: Array, selected: Bools | None, dtype: str
) -> Share:
    """Return the entries that use up most of their budget: all of them, or a group of one of the ``scopes``.

    ``error``, ``noise`` and ``truth`` have the same shape, to which ``selected`` broadcasts: where to judge (None:
    everywhere).
    """
    sizes = [error, noise, np.abs(truth)]
    if selected is not None:  # many times faster than a maximum of some entries
        sizes = [np.where(selected, size, 0.0) for size in sizes]
    with np.errstate(invalid="ignore"):  # NaN is judged, not warned about
        largest, noisiest, magnitude = (float(size.max(initial=0.0)) for size in sizes)
    whole = Share("", largest, noisiest, budget(noisiest, magnitude, dtype))
    if not scopes or not np.isfinite([largest, noisiest]).all():
        return whole
    counted = np.ones((1,) * error.ndim, np.bool_) if selected is None else selected
    counted = np.broadcast_to(counted, (*error.shape[:-1], counted.shape[-1]))
    chaotic = _is_chaotic(sizes[1], magnitude, scopes[0], dtype)
    sizes, counted = [np.where(chaotic, 0.0, size) for size in sizes], counted & ~chaotic
    return max([whole, *(_worst_group(scope, sizes, counted, dtype) for scope in scopes)], key=lambda share: share.used)


def _worst_group(scope: Scope, sizes: Sequence[Array], counted: Bools, dtype: str) -> Share:
    others = tuple(axis for axis in range(counted.ndim) if axis not in scope.axes)
    error, noise, magnitude = (size.max(axis=others, initial=0.0) for size in sizes)
    limit = budgets(noise, magnitude, dtype, scope.factor)
    with np.errstate(divide="ignore", invalid="ignore"):
        used = np.where((error > 0) & _has_enough_tokens(counted, others), error / limit, 0.0)
    place = np.unravel_index(int(used.argmax()), used.shape)
    if not used[place]:
        return Share("", 0.0, 0.0, 0.0)
    where = f"{scope.name} {', '.join(str(int(index)) for index in place)}"
    return Share(where, float(error[place]), float(noise[place]), float(limit[place]))


def _is_chaotic(noise: Array, magnitude: float, channel: Scope, dtype: str) -> Bools:
    """Return which tokens have far more noise than the others, so that one token decides the noise of every channel.

    Their noise points in a few random directions. The error of a correct result may point in another, where a channel
    has less noise. So these tokens are judged only as part of the whole value, and left out of every group.
    """
    by_token = noise.max(axis=channel.axes, keepdims=True)
    if by_token.size <= LEAST_TOKENS:
        return np.zeros_like(by_token, np.bool_)
    usual = float(np.partition(by_token, -LEAST_TOKENS, axis=None)[-LEAST_TOKENS])
    return by_token > budget(usual, magnitude, dtype)


def _has_enough_tokens(counted: Bools, others: tuple[int, ...]) -> Bools:
    """Return which groups have so many tokens that a budget of their own is certain enough.

    Tokens count, not entries, because the entries of a token share the rounding error of its mean.
    """
    last = counted.ndim - 1
    tokens = counted.any(axis=last) if last in others else counted
    return tokens.sum(axis=tuple(axis for axis in others if axis != last)) >= LEAST_TOKENS
