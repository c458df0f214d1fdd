"""The implementation in PyTorch."""

import torch

# MKL looks up each of its vector functions at its first call. If several threads make that call, one of them may run a
# kernel with half the digits, once (pytorch/pytorch#188792): in 3 of 100 processes with two threads, the first tanh was
# off by 4e-5. So each function is first called on a single number.
for _function in (torch.tanh, torch.exp, torch.log, torch.sqrt, torch.erf):
    for _dtype in (torch.float32, torch.float64):
        _function(torch.ones(1, dtype=_dtype))
