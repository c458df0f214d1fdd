"""PyTorch's attention on packed tokens: matrix products if the scores fit into the caches, else a fused kernel."""

import numpy as np
import pytest
import torch

from triglot.impls.pytorch import packed

HEADS, KEY_SIZE = 2, 8


def attention_inputs(rows, length, lengths):
    """Queries, keys and values from -1 to 1, and a mask that hides what lies behind ``lengths``; None hides nothing."""
    generator = np.random.default_rng(0)
    vectors = [torch.from_numpy(generator.uniform(-1, 1, (rows, HEADS, length, KEY_SIZE))).float() for _ in range(3)]
    mask = None
    if lengths is not None:
        hidden = np.arange(length) >= np.array(lengths)[:, None]
        mask = torch.where(torch.from_numpy(hidden), -np.inf, 0.0).float()[:, None, None, :]
    return vectors, mask


# Rows, length, and the number of blocks that products compute; 0: the fused kernel.
SIZES = [(3, 20, 0), (1, 400, 0), (4, 60, 1), (20, 100, 2), (2, 350, 2)]


@pytest.mark.parametrize(("rows", "length", "blocks"), SIZES)
@pytest.mark.parametrize("is_ragged", [False, True])
def test_every_path_computes_the_same_attention(rows, length, blocks, is_ragged, monkeypatch):
    called = []
    products = packed.attend_by_products
    monkeypatch.setattr(packed, "attend_by_products", lambda *block: called.append(block) or products(*block))
    lengths = np.linspace(length, 1, rows, dtype=int) if is_ragged else None
    vectors, mask = attention_inputs(rows, length, lengths)

    context = packed.attend(*vectors, mask=mask).numpy()

    assert len(called) == blocks
    queries, keys, values = (vector.numpy().astype(float) for vector in vectors)
    scores = queries @ keys.swapaxes(-1, -2) / np.sqrt(KEY_SIZE)
    weights = np.exp(scores if mask is None else scores + mask.numpy())
    expected = weights @ values / weights.sum(-1, keepdims=True)
    # A score is at most sqrt(KEY_SIZE) and has KEY_SIZE + 2 roundings; a weight twice the error of a score, and those
    # of the softmax; a mean of values of at most 1 as much as its weights, and those of the sum.
    roundings = 2 * np.sqrt(KEY_SIZE) * (KEY_SIZE + 2) + 2 * length
    np.testing.assert_allclose(context, expected, rtol=0, atol=roundings * np.finfo(np.float32).eps)


def test_rows_of_a_block_do_not_see_each_other():
    vectors, mask = attention_inputs(4, 60, [60, 50, 50, 40])
    clean = packed.attend(*vectors, mask=mask)
    for vector in vectors:
        vector[1] = np.nan
    spoiled = packed.attend(*vectors, mask=mask)
    assert spoiled[1].isnan().all()
    others = [0, 2, 3]
    assert torch.equal(spoiled[others], clean[others])
