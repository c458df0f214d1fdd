"""Attention masks, True where a query may attend, and softmax functions with and without a mask.

Shapes: B batch, T target length, S source length, H heads.
"""

import torch
from torch import Tensor

from triglot.shared.model.config import ModelConfig


def padding(valid: Tensor) -> Tensor:
    """Hide padding: turn ``valid``, bool (B, S), True for real tokens, into a mask (B, 1, 1, S)."""
    return valid[:, None, None, :]


def causal(length: int, device: torch.device | str) -> Tensor:
    """Let each position attend to itself and to earlier positions: (1, 1, T, T)."""
    return torch.ones(length, length, dtype=torch.bool, device=device).tril()[None, None]


def combine(left: Tensor, right: Tensor) -> Tensor:
    """Allow what both masks allow."""
    return left & right


def masked_softmax(scores: Tensor, allowed: Tensor, bias: Tensor | None, config: ModelConfig) -> Tensor:
    """Return the attention weights of scores, both (B, H, T, S). The mask and the bias broadcast to the scores.

    The mask acts as ``config.masking`` says: "exclude" makes masked weights exactly 0, even in a row where nothing is
    allowed, "fill" replaces a masked score by the masking value, and "add" adds the masking value to it. The value and
    the sum are at least the lowest finite number, so that no row is ever NaN. Everything runs in float32 or wider,
    because a 16-bit sum of a score and a large masking value would lose the score.
    """
    dtype = scores.dtype
    scores = scores.to(torch.promote_types(dtype, torch.float32))
    if bias is not None:
        scores = scores + bias.to(scores.dtype)
    minimum = masking_value = torch.finfo(scores.dtype).min
    if config.masking_value is not None:
        masking_value = max(masking_value, config.masking_value)
    if config.masking == "add":
        scores = torch.where(allowed, scores, torch.clamp(scores, min=minimum - masking_value) + masking_value)
    else:
        scores = torch.where(allowed, scores, masking_value)
    weights = torch.softmax(scores, dim=-1)
    if config.masking == "exclude":
        weights = torch.where(allowed, weights, 0.0)
    return weights.to(dtype)


def log_softmax(x: Tensor) -> Tensor:
    """Return the log-softmax over the last axis, computed in float32 or wider."""
    return torch.log_softmax(x, dim=-1)
