"""What stands on top of the encoder.

Shapes: B batch, S length, D hidden size.
"""

import numpy as np
from numpy import ndarray

from ...shared.config import ModelConfig
from ...shared.probe import Probe, observe
from .. import numpy_nn as nn


class Heads:
    """The heads that the configuration names, by name. x: (B, S, D), the output of the encoder.

    "pooler": the first token through a linear layer and tanh, (B, D) (Devlin et al. 2018).
    """

    def __init__(self, config: ModelConfig) -> None:
        if "pooler" in config.heads_on_top:
            self.pooler = nn.Linear(config.hidden_size, config.hidden_size)

    def __call__(self, x: ndarray, probe: Probe | None = None) -> dict[str, ndarray]:
        outputs: dict[str, ndarray] = {}
        if hasattr(self, "pooler"):
            outputs["pooler"] = observe(probe, "pooler", np.tanh(self.pooler(x[:, 0])))
        return outputs
