"""PyTorch's attention on packed tokens: a fused kernel, or matrix products if they are faster."""

import platform
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from triglot.impls.pytorch import packed

HEADS, KEY_SIZE = 2, 8
EPS = {torch.float32: 2.0**-23, torch.bfloat16: 2.0**-7}

# Rows, length, and how many blocks matrix products compute, without AMX, with two threads in float32; 0: the fused
# kernel.
SIZES = [(3, 20, 0), (2, 400, 0), (4, 60, 1), (40, 100, 2), (3, 350, 2)]


def projected(rows, length, value_size, dtype):
    """Queries, keys and values from -1 to 1, as parts of one tensor."""
    generator = np.random.default_rng(0)
    features = generator.uniform(-1, 1, (rows, length, HEADS * (2 * KEY_SIZE + value_size)))
    parts = torch.from_numpy(features).to(dtype).split([HEADS * size for size in (KEY_SIZE, KEY_SIZE, value_size)], -1)
    return [part.view(rows, length, HEADS, -1).transpose(1, 2) for part in parts]


def mask_after(lengths, longest, dtype):
    """The mask that hides the tokens after the first ``lengths`` of each row."""
    hidden = torch.arange(longest) >= torch.as_tensor(lengths)[:, None]
    return torch.zeros(hidden.shape, dtype=dtype).masked_fill(hidden, -torch.inf)[:, None, None, :]


def in_the_fused_kernel(attention, value_size):
    """The attention of PyTorch, which raises if its fused kernel cannot compute keys and values of the same size."""

    def compute(*given):
        if value_size != KEY_SIZE:
            return attention(*given)
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return attention(*given)

    return compute


@pytest.fixture(autouse=True)
def two_threads(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)


@pytest.fixture(params=[False, True], ids=["without AMX", "with AMX"])
def has_amx(request, monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_tile": request.param})
    return request.param


@pytest.mark.parametrize(("rows", "length", "blocks"), SIZES)
@pytest.mark.parametrize("is_ragged", [False, True])
@pytest.mark.parametrize("dtype", EPS)
@pytest.mark.parametrize("value_size", [KEY_SIZE, 6])
def test_every_path_computes_the_same_attention(
    rows, length, blocks, is_ragged, dtype, value_size, has_amx, monkeypatch
):
    called, fused = [], functional.scaled_dot_product_attention
    products = packed.attend_by_products
    monkeypatch.setattr(packed, "attend_by_products", lambda *block: called.append(block) or products(*block))
    monkeypatch.setattr(functional, "scaled_dot_product_attention", in_the_fused_kernel(fused, value_size))
    vectors = projected(rows, length, value_size, dtype)
    mask = mask_after(np.linspace(length, 1, rows, dtype=int), length, dtype) if is_ragged else None

    context = packed.attend(*vectors, mask=mask).double().numpy()

    prefers_fused = has_amx and value_size == KEY_SIZE
    if prefers_fused or dtype == torch.float32:
        assert len(called) == (0 if prefers_fused else blocks)
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


def test_rows_of_a_group_do_not_see_each_other(has_amx):
    vectors, mask = projected(4, 60, KEY_SIZE, torch.float32), mask_after([60, 50, 50, 40], 60, torch.float32)
    clean = packed.attend(*vectors, mask=mask)
    for vector in vectors:
        vector[1] = np.nan
    spoiled = packed.attend(*vectors, mask=mask)
    assert spoiled[1].isnan().all()
    others = [0, 2, 3]
    assert torch.equal(spoiled[others], clean[others])


@pytest.mark.parametrize(
    ("capabilities", "fast"),
    [
        ({"cpu_name": "", "amx_tile": True}, True),
        ({"cpu_name": "Intel Xeon", "avx512_fp16": True}, True),
        ({"cpu_name": "Intel Xeon", "avx512_fp16": False}, False),
        ({"cpu_name": "AMD EPYC", "avx512_fp16": True}, False),
        ({}, False),  # not an x86 processor
    ],
)
def test_where_the_fused_kernel_is_fast_for_all_rows(capabilities, fast, monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    assert packed.fused_attention_is_fast(8, 8) == fast
    assert not packed.fused_attention_is_fast(8, 6)


@pytest.mark.skipif((sys.platform, platform.machine()) != ("linux", "x86_64"), reason="Linux names these for x86")
def test_pytorch_describes_the_processor_as_linux_does():
    found, processor = torch.cpu.get_capabilities(), Path("/proc/cpuinfo").read_text()
    assert ("Intel" in found["cpu_name"]) == ("GenuineIntel" in processor)
    for name in ("amx_tile", "avx512_fp16"):
        assert found[name] == (name in processor)
