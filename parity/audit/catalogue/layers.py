"""Bugs in the layers: norms, residuals, the feed-forward network, and the order of all these."""

from triglot.parity.audit.bug import ANNOTATED, PRE_NORM, WITHOUT_BIASES, Bug, everywhere

CANCELLING = {
    "return functional.layer_norm(": (
        "mean, square = x.mean(-1, keepdim=True), (x * x).mean(-1, keepdim=True)\n"
        "        return (x - mean) / (square - mean * mean + self.eps) ** 0.5 * self.scale + self.bias\n"
        "        return functional.layer_norm("
    )
}
WRITTEN_OUT = "(centred * centred).mean(axis=-1, keepdim=True)"
EPSILON = "(deviation + self.eps)"
PADDLE_EPSILON = "(deviation + paddle.full([], self.eps, wide.dtype))"
KERNEL = "return functional.layer_norm("
UNBIASED = (
    "return (x - x.mean(-1, keepdim=True)) / (x.var(-1, {}, keepdim=True) + self.eps) ** 0.5"
    " * self.scale + self.bias\n        "
)
ROOT_MEAN_SQUARE = (
    "if self.bias is None:\n            return self.scale * x / ((x * x).mean(-1, keepdim=True) + self.eps) ** 0.5\n"
    + 8 * " "
)
CENTRED = "(centred * centred).mean(axis=-1, keepdims=True)"
LAYERS = "enumerate(self.layers)"

BUGS = {
    "tanh GELU for the exact GELU": Bug(
        "encoder.layers.0.feed_forward.activation",
        "feed_forward.py",
        {'functional.gelu, approximate="none"': 'functional.gelu, approximate="tanh"'},
        {"functional.gelu, approximate=False": "functional.gelu, approximate=True"},
        {"jax.nn.gelu, approximate=False": "jax.nn.gelu, approximate=True"},
    ),
    "epsilon 1e-5 for 1e-12": everywhere(
        "embeddings.process.norm", "norms.py", {"self.eps = config.norm_eps": "self.eps = 1e-5"}
    ),
    "pre-norm for post-norm": everywhere(
        "encoder.layers.0.attention.key",
        "encoder.py",
        {
            'self.pre_attention(x, probe=under(probe, "pre_attention"))': "self.post_attention.norm(x)",
            'self.post_attention(x, residual, probe=under(probe, "post_attention"))': "x + residual",
        },
    ),
    "epsilon 1e-6 for 1e-5": everywhere(
        "encoder.layers.0.pre_attention.norm", "norms.py", {"self.eps = config.norm_eps": "self.eps = 1e-6"}, PRE_NORM
    ),
    "final norm missing": everywhere(
        "encoder.final.norm", "encoder.py", {'self.final(x, probe=under(probe, "final"))': "x"}, PRE_NORM
    ),
    "residual after the norm": everywhere(
        "encoder.layers.0.post_attention.residual",
        "encoder.py",
        {"self.post_attention(x, residual, ": "self.post_attention(x, self.pre_attention(residual), "},
        PRE_NORM,
    ),
    "variance by a formula that cancels": Bug(
        "encoder.layers.0.pre_attention.norm",
        "norms.py",
        CANCELLING,
        CANCELLING | {WRITTEN_OUT: "(wide * wide).mean(axis=-1, keepdim=True) - (wide - centred) ** 2"},
        {"(centred * centred).mean(axis=-1, keepdims=True)": "(x * x).mean(-1, keepdims=True) - (x - centred) ** 2"},
        PRE_NORM,
    ),
    "standard deviation with n instead of n - 1": Bug(
        "encoder.layers.0.pre_attention.norm",
        "norms.py",
        {"correction=1": "correction=0"},
        {"/ (x.shape[-1] - 1)": "/ x.shape[-1]"},
        {"ddof=1": "ddof=0"},
        ANNOTATED,
    ),
    "epsilon under the root": Bug(
        "encoder.layers.0.pre_attention.norm",
        "norms.py",
        {EPSILON: EPSILON.replace("deviation", "deviation**2") + " ** 0.5"},
        {PADDLE_EPSILON: PADDLE_EPSILON.replace("deviation", "deviation**2") + " ** 0.5"},
        {EPSILON: EPSILON.replace("deviation", "deviation**2") + " ** 0.5"},
        ANNOTATED,
    ),
    "variance with n - 1": Bug(
        "embeddings.process.norm",
        "norms.py",
        {KERNEL: UNBIASED.format("correction=1") + KERNEL},
        {KERNEL: UNBIASED.format("unbiased=True") + KERNEL, WRITTEN_OUT: "x.var(-1, unbiased=True, keepdim=True)"},
        {CENTRED: "(centred * centred).sum(-1, keepdims=True) / (x.shape[-1] - 1)"},
    ),
    "epsilon 1e-9 for 1e-12": everywhere(
        "embeddings.process.norm", "norms.py", {"self.eps = config.norm_eps": "self.eps = 1e-9"}
    ),
    "no epsilon": everywhere("embeddings.process.norm", "norms.py", {"self.eps = config.norm_eps": "self.eps = 0.0"}),
    "norm without its bias": Bug(
        "embeddings.process.norm",
        "norms.py",
        {"self.scale, self.bias, self.eps": "self.scale, 0 * self.bias, self.eps"},
        {
            "self.scale, self.bias, self.eps": "self.scale, 0 * self.bias, self.eps",
            "scaled + self.bias)": "scaled)",
        },
        {"scaled + self.bias)": "scaled)"},
    ),
    "scale of the norm squared": Bug(
        "embeddings.process.norm",
        "norms.py",
        {"self.scale, self.bias, self.eps": "self.scale**2, self.bias, self.eps"},
        {
            "self.scale, self.bias, self.eps": "self.scale**2, self.bias, self.eps",
            "* self.scale\n": "* self.scale**2\n",
        },
        {"* self.scale\n": "* self.scale**2\n"},
    ),
    "norm without a bias that has no scale either": Bug(
        "encoder.layers.0.pre_attention.norm",
        "norms.py",
        {"self.scale, self.bias, self.eps": "None if self.bias is None else self.scale, self.bias, self.eps"},
        {
            "self.scale, self.bias, self.eps": "None if self.bias is None else self.scale, self.bias, self.eps",
            "(scaled if": "(scaled / self.scale if",
        },
        {"(scaled if": "(scaled / self.scale if"},
        WITHOUT_BIASES,
    ),
    "norm without a bias taken for an RMS norm": Bug(
        "encoder.layers.0.pre_attention.norm",
        "norms.py",
        {KERNEL: ROOT_MEAN_SQUARE + KERNEL},
        {KERNEL: ROOT_MEAN_SQUARE + KERNEL, "centred = wide - ": "centred = wide - float(self.bias is not None) * "},
        {"centred = wide - ": "centred = wide - (self.bias is not None) * "},
        WITHOUT_BIASES,
    ),
    "sigmoid GELU for the exact GELU": Bug(
        "encoder.layers.0.feed_forward.activation",
        "feed_forward.py",
        {'partial(functional.gelu, approximate="none")': "lambda x: x * (1.702 * x).sigmoid()"},
        {"partial(functional.gelu, approximate=False)": "lambda x: x * functional.sigmoid(1.702 * x)"},
        {"partial(jax.nn.gelu, approximate=False)": "lambda x: x * jax.nn.sigmoid(1.702 * x)"},
    ),
    "ReLU for GELU": Bug(
        "encoder.layers.0.feed_forward.activation",
        "feed_forward.py",
        {'partial(functional.gelu, approximate="none")': "functional.relu"},
        {"partial(functional.gelu, approximate=False)": "functional.relu"},
        {"partial(jax.nn.gelu, approximate=False)": "jax.nn.relu"},
    ),
    "no activation": everywhere(
        "encoder.layers.0.feed_forward.activation", "feed_forward.py", {"self.activation(x))": "x)"}
    ),
    "bias of the inner layer missing": everywhere(
        "encoder.layers.0.feed_forward.inner", "feed_forward.py", {"self.inner(x))": "self.inner(x) - self.inner.bias)"}
    ),
    "no residual": everywhere("encoder.layers.0.post_attention.residual", "process.py", {"x + residual": "x"}),
    "residual counted twice": everywhere(
        "encoder.layers.0.post_attention.residual", "process.py", {"x + residual": "x + 2 * residual"}
    ),
    "residual of the feed-forward network from before the attention": everywhere(
        "encoder.layers.0.post_feed_forward.residual",
        "encoder.py",
        {"        residual = x\n        x = self.pre_feed_forward": "        x = self.pre_feed_forward"},
    ),
    "norm of the attention used after the feed-forward network": everywhere(
        "encoder.layers.0.post_feed_forward.norm",
        "encoder.py",
        {"self.post_feed_forward(x, residual": "self.post_attention(x, residual"},
    ),
    "last layer skipped": everywhere(
        "encoder.layers.1.attention.key", "encoder.py", {LAYERS: "enumerate(list(self.layers)[:-1])"}
    ),
    "layers in reverse order": everywhere(
        "encoder.layers.0.attention.key", "encoder.py", {LAYERS: "enumerate(reversed(list(self.layers)))"}
    ),
    "first layer in place of all": everywhere(
        "encoder.layers.1.attention.key", "encoder.py", {"x = layer(x,": "x = self.layers[0](x,"}
    ),
}
