"""The implementation in PyTorch."""

import torch

# MKL looks up each of its vector functions when it is first called. Where several threads are the first, one of them
# may run a kernel with half the digits, for that one call (pytorch/pytorch#188792): in 3 of 100 processes on two
# threads, the first tanh was 4e-5 off. So a single number goes first.
for _function in (torch.tanh, torch.exp, torch.log, torch.sqrt, torch.erf):
    for _dtype in (torch.float32, torch.float64):
        _function(torch.ones(1, dtype=_dtype))
