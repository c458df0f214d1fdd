"""PyTorch's attention on packed tokens: matrix products if the scores fit into the caches, else a fused kernel."""

import numpy as np
import pytest
import torch

from triglot.impls.pytorch import packed

HEADS, KEY_SIZE, VALUE_SIZE = 2, 8, 6
EPS = {torch.float32: 2.0**-23, torch.bfloat16: 2.0**-7}

# Rows, length, and how many blocks matrix products compute, with two threads in float32; 0: the fused kernel.
SIZES = [(3, 20, 0), (2, 400, 0), (4, 60, 1), (40, 100, 2), (3, 350, 2)]


def projected(rows, length, dtype):
    """Queries, keys and values from -1 to 1, as parts of one tensor."""
    generator = np.random.default_rng(0)
    features = generator.uniform(-1, 1, (rows, length, HEADS * (2 * KEY_SIZE + VALUE_SIZE)))
    parts = torch.from_numpy(features).to(dtype).split([HEADS * size for size in (KEY_SIZE, KEY_SIZE, VALUE_SIZE)], -1)
    return [part.view(rows, length, HEADS, -1).transpose(1, 2) for part in parts]


def mask_after(lengths, longest, dtype):
    """The mask that hides the tokens after the first ``lengths`` of each row."""
    hidden = torch.arange(longest) >= torch.as_tensor(lengths)[:, None]
    return torch.zeros(hidden.shape, dtype=dtype).masked_fill(hidden, -torch.inf)[:, None, None, :]


@pytest.fixture(autouse=True)
def two_threads(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)


@pytest.mark.parametrize(("rows", "length", "blocks"), SIZES)
@pytest.mark.parametrize("is_ragged", [False, True])
@pytest.mark.parametrize("dtype", EPS)
def test_every_path_computes_the_same_attention(rows, length, blocks, is_ragged, dtype, monkeypatch):
    called = []
    products = packed.attend_by_products
    monkeypatch.setattr(packed, "attend_by_products", lambda *block: called.append(block) or products(*block))
    vectors = projected(rows, length, dtype)
    mask = mask_after(np.linspace(length, 1, rows, dtype=int), length, dtype) if is_ragged else None

    context = packed.attend(*vectors, mask=mask).double().numpy()

    assert dtype != torch.float32 or len(called) == blocks
    queries, keys, values = (vector.double().numpy() for vector in vectors)
    scores = queries @ keys.swapaxes(-1, -2) / np.sqrt(KEY_SIZE)
    weights = np.exp(scores if mask is None else scores + mask.double().numpy())
    expected = weights @ values / weights.sum(-1, keepdims=True)
    # A score is at most sqrt(KEY_SIZE). Sums are computed in float32 and rounded once to the dtype. So the error of
    # a weight comes from two roundings, of its score and of itself. The result, a weighted mean of values of at most 1,
    # adds one of its own.
    sums = (2 * np.sqrt(KEY_SIZE) * (KEY_SIZE + 2) + 2 * length) * EPS[torch.float32]
    roundings = (2 * np.sqrt(KEY_SIZE) + 2) * EPS[dtype]
    np.testing.assert_allclose(context, expected, rtol=0, atol=sums + roundings)


def test_rows_of_a_block_do_not_see_each_other():
    vectors, mask = projected(4, 60, torch.float32), mask_after([60, 50, 50, 40], 60, torch.float32)
    clean = packed.attend(*vectors, mask=mask)
    for vector in vectors:
        vector[1] = np.nan
    spoiled = packed.attend(*vectors, mask=mask)
    assert spoiled[1].isnan().all()
    others = [0, 2, 3]
    assert torch.equal(spoiled[others], clean[others])
