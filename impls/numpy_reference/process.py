"""Pre- and post-processes: residual, norm and dropout around every sublayer.

Shapes: B batch, S length, D hidden size.
"""

from numpy import ndarray

from triglot.impls import numpy_nn as nn
from triglot.shared.model.config import ModelConfig
from triglot.shared.model.probe import Probe, dropped, observe

from .norms import NORMS


class PrePostProcess:
    """Run commands in the order of a string: "a" adds the residual, "n" normalises, "d" applies dropout.

    Pre-norm is "n" before a sublayer and "da" after it. Post-norm is "" before and "dan" after. Source:
    PrePostProcessLayer of ERNIE in PaddlePaddle 1.7. ``size`` and ``norm_bias`` are those of the norm.
    """

    def __init__(
        self,
        commands: str,
        dropout: float,
        config: ModelConfig,
        size: int | None = None,
        norm_bias: bool | None = None,
    ) -> None:
        self.commands = commands
        if "n" in commands:
            self.norm = NORMS[config.norm](config, size, norm_bias)
        if "d" in commands:
            self.dropout = nn.Dropout(dropout)

    def __call__(self, x: ndarray, residual: ndarray | None = None, probe: Probe | None = None) -> ndarray:
        """Return the processed x, (B, S, D). residual: the input of the sublayer, (B, S, D), for the command "a"."""
        for index, command in enumerate(self.commands):
            if command == "a":
                assert residual is not None  # ModelConfig accepts "a" only after a sublayer
                x = observe(probe, "residual", x + residual)
            elif command == "n":
                x = observe(probe, "norm", self.norm(x))
            elif command == "d":
                x = dropped(probe, f"dropout.{index}", x, self.dropout)
        return x
