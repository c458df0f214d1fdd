"""What stands around every sublayer: residual, norm and dropout, in the order that a string of commands says.

Shapes: B batch, S length, D hidden size.
"""

from numpy import ndarray

from triglot.impls import numpy_nn as nn
from triglot.shared.model.config import ModelConfig
from triglot.shared.model.probe import Probe, dropped, observe

from .norms import NORMS


class PrePostProcess:
    """``a`` adds the residual, ``n`` normalises, ``d`` drops out; "" passes x on. x, residual: (B, S, D).

    Source: PrePostProcessLayer of ERNIE in PaddlePaddle 1.7. Pre-norm is "n" before and "da" after the sublayer,
    post-norm is "" before and "dan" after it.
    """

    def __init__(self, commands: str, dropout: float, config: ModelConfig) -> None:
        self.commands = commands
        if "n" in commands:
            self.norm = NORMS[config.norm](config)
        if "d" in commands:
            self.dropout = nn.Dropout(dropout)

    def __call__(self, x: ndarray, residual: ndarray | None = None, probe: Probe | None = None) -> ndarray:
        for place, command in enumerate(self.commands):
            if command == "a":
                assert residual is not None  # ModelConfig accepts an "a" after a sublayer alone
                x = observe(probe, "residual", x + residual)
            elif command == "n":
                x = observe(probe, "norm", self.norm(x))
            elif command == "d":
                x = dropped(probe, f"dropout.{place}", x, self.dropout)
        return x
