"""Masks, bool, True = may attend, the softmax that obeys them, and the one that obeys none.

Shapes: B batch, T target length, S source length, H heads.
"""

import torch
from torch import Tensor

from triglot.shared.model.config import ModelConfig


def padding(valid: Tensor) -> Tensor:
    """Which source tokens are real: (B, S) -> (B, 1, 1, S)."""
    return valid[:, None, None, :]


def causal(length: int, device: torch.device | str) -> Tensor:
    """Each position sees itself and what came before: (1, 1, T, T)."""
    return torch.ones(length, length, dtype=torch.bool, device=device).tril()[None, None]


def combine(left: Tensor, right: Tensor) -> Tensor:
    """What both masks allow."""
    return left & right


def masked_softmax(scores: Tensor, allowed: Tensor, bias: Tensor | None, config: ModelConfig) -> Tensor:
    """Attention weights from scores and bias, (B, H, T, S); ``config.masking`` says what becomes of forbidden scores.

    "exclude": weight exactly 0, also where nothing is allowed. "fill": the value replaces the score. "add": the
    value is added to the score. Value and sum are at least the dtype's finite minimum, so that no row is ever NaN.
    Everything runs in float32 or wider: beside a masking value, 16 bits have no digits left for the score.
    """
    dtype = scores.dtype
    scores = scores.to(torch.promote_types(dtype, torch.float32))
    if bias is not None:
        scores = scores + bias.to(scores.dtype)
    lowest = value = torch.finfo(scores.dtype).min
    if config.masking_value is not None:
        value = max(value, config.masking_value)
    if config.masking == "add":
        scores = torch.where(allowed, scores, torch.clamp(scores, min=lowest - value) + value)
    else:
        scores = torch.where(allowed, scores, value)
    weights = torch.softmax(scores, dim=-1)
    if config.masking == "exclude":
        weights = torch.where(allowed, weights, 0.0)
    return weights.to(dtype)


def log_softmax(x: Tensor) -> Tensor:
    """The logarithm of the softmax over the last axis, in float32 or wider inside."""
    return torch.log_softmax(x, dim=-1)
