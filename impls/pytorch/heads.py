"""What stands on top of the encoder.

Shapes: B batch, S length, D hidden size.
"""

import torch
from torch import Tensor, nn

from ...shared.config import ModelConfig
from ...shared.probe import Probe, observe


class Heads(nn.Module):
    """The heads that the configuration names, by name. x: (B, S, D), the output of the encoder.

    "pooler": the first token through a linear layer and tanh, (B, D) (Devlin et al. 2018).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        if "pooler" in config.heads_on_top:
            self.pooler = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, x: Tensor, probe: Probe | None = None) -> dict[str, Tensor]:
        outputs: dict[str, Tensor] = {}
        if hasattr(self, "pooler"):
            outputs["pooler"] = observe(probe, "pooler", torch.tanh(self.pooler(x[:, 0])))
        return outputs
