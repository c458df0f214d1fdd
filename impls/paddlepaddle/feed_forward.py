"""The position-wise feed-forward network: two linear layers that treat every token alike.

Shapes: B batch, S length, D hidden size, F feed-forward size.
"""

from functools import partial

from paddle import Tensor, nn
from paddle.nn import functional

from triglot.shared.model.config import ModelConfig
from triglot.shared.model.probe import Probe, dropped, observe

# ``approximate`` is always written out, because the frameworks have different defaults.
ACTIVATIONS = {
    "relu": functional.relu,
    "gelu": partial(functional.gelu, approximate=False),
    "gelu_tanh": partial(functional.gelu, approximate=True),
}


class FeedForward(nn.Layer):
    """Two linear layers, D to F to D, with an activation between them ("Attention is all you need", section 3.3)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.inner = nn.Linear(
            config.hidden_size, config.feed_forward_size, bias_attr=None if config.feed_forward_bias else False
        )
        self.output = nn.Linear(
            config.feed_forward_size, config.hidden_size, bias_attr=None if config.feed_forward_bias else False
        )
        self.activation = ACTIVATIONS[config.activation]
        self.dropout = nn.Dropout(config.feed_forward_dropout, mode="upscale_in_train")
        self.output_dropout = nn.Dropout(config.feed_forward_output_dropout, mode="upscale_in_train")

    def forward(self, x: Tensor, probe: Probe | None = None) -> Tensor:
        """Return the output, (B, S, D). x: (B, S, D)."""
        x = observe(probe, "inner", self.inner(x))
        x = observe(probe, "activation", self.activation(x))
        x = dropped(probe, "dropout", x, self.dropout)
        x = observe(probe, "output", self.output(x))
        return dropped(probe, "output_dropout", x, self.output_dropout)
