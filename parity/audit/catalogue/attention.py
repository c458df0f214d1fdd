"""Bugs in the attention, its masks and its softmax."""

from triglot.parity.audit.bug import ATTENTION, LONG, PRE_NORM, PRENORM, TRANSLATION, Bug, everywhere

ADDED = " + masking_value"
REPLACED = " * 0 + masking_value"
LOWEST = "minimum = masking_value ="
LIMITED = "max(masking_value, config.masking_value"
SCALE = "self.config.key_size**-0.5"
PADDING = "return valid[:, None, None, :]"

BUGS = {
    "inverted padding mask": everywhere(
        "masks.padding", "masks.py", {"return valid[:, None, None, :]": "return ~valid[:, None, None, :]"}
    ),
    "allowed scores masked and forbidden ones kept": Bug(
        "encoder.layers.0.attention.weights",
        "masks.py",
        {"where(allowed, scores, masking_value)": "where(~allowed, scores, masking_value)"},
        {"masked_fill(~allowed, masking_value)": "masked_fill(allowed, masking_value)"},
        {"where(allowed, scores, masking_value)": "where(~allowed, scores, masking_value)"},
    ),
    "scores not scaled": Bug(
        "encoder.layers.0.attention.scores",
        "attention.py",
        {"query * self.config.key_size**-0.5": "query"},
        {"query * exact(self.config.key_size**-0.5, query.dtype)": "query"},
        {"query * self.config.key_size**-0.5": "query"},
    ),
    "masking value replaces the score instead of being added": everywhere(
        "encoder.layers.0.attention.weights", "masks.py", {ADDED: REPLACED}, PRE_NORM
    ),
    "masking value 1 % off": everywhere(
        "encoder.layers.0.attention.weights", "masks.py", {LIMITED: f"{LIMITED} * 1.01"}, PRE_NORM
    ),
    "masked token excluded instead of penalised": everywhere(
        "encoder.layers.0.attention.weights", "masks.py", {'if config.masking == "exclude"': "if True"}, PRE_NORM
    ),
    "masking value of -10,000 where masked tokens are excluded": Bug(
        "encoder.layers.0.attention.weights",
        "masks.py",
        {f"{LOWEST} torch.finfo(scores.dtype).min": "minimum, masking_value = torch.finfo(scores.dtype).min, -1e4"},
        {f"{LOWEST} paddle.finfo(scores.dtype).min": "minimum, masking_value = paddle.finfo(scores.dtype).min, -1e4"},
        {f"{LOWEST} float(jnp.finfo(scores.dtype).min)": "minimum, masking_value = jnp.finfo(scores.dtype).min, -1e4"},
    ),
    "attention weights of a row without any allowed token": everywhere(
        "encoder.layers.0.attention.weights", "masks.py", {'if config.masking == "exclude"': "if False"}
    ),
    "causal mask off by one": Bug(
        "masks.causal",
        "masks.py",
        {"tril()": "tril(1)"},
        {"tril()": "tril(1)"},
        {"jnp.tri(length,": "jnp.tri(length, k=1,"},
        TRANSLATION,
    ),
    "no activation after the attention": everywhere(
        "encoder.layers.0.attention.output",
        "attention.py",
        {'if self.config.attention_output_activation == "relu":': "if False:"},
        PRENORM,
    ),
    "attention bias halved": everywhere(
        "attention.weights", "masks.py", {"scores = scores + bias": "scores = scores + 0.5 * bias"}, ATTENTION
    ),
    "attention bias ignored": everywhere(
        "attention.weights", "masks.py", {"scores = scores + bias": "scores = scores + 0 * bias"}, ATTENTION
    ),
    "scores scaled by the size of the model": everywhere(
        "encoder.layers.0.attention.scores", "attention.py", {SCALE: "self.config.hidden_size**-0.5"}
    ),
    "scale 0.35 for 8^-0.5": everywhere("encoder.layers.0.attention.scores", "attention.py", {SCALE: "0.35"}),
    "scores scaled 1 % too much": everywhere(
        "encoder.layers.0.attention.scores", "attention.py", {SCALE: f"1.01 * {SCALE}"}
    ),
    "heads split in the wrong order": Bug(
        "encoder.layers.0.attention.key",
        "attention.py",
        {"(self.config.heads, size)).transpose(1, 2)": "(size, self.config.heads)).permute(0, 3, 1, 2)"},
        {"self.config.heads, size]).transpose([0, 2, 1, 3])": "size, self.config.heads]).transpose([0, 3, 1, 2])"},
        {"self.config.heads, size).swapaxes(1, 2)": "size, self.config.heads).transpose(0, 3, 1, 2)"},
    ),
    "heads merged without moving them back": Bug(
        "encoder.layers.0.attention.context",
        "attention.py",
        {"x.transpose(1, 2).flatten(-2)": "x.reshape(x.shape[0], x.shape[2], -1)"},
        {"x.transpose([0, 2, 1, 3]).flatten(-2)": "x.reshape([x.shape[0], x.shape[2], -1])"},
        {"x.swapaxes(1, 2).reshape(": "x.reshape("},
    ),
    "values by the weights of the keys": everywhere(
        "encoder.layers.0.attention.value",
        "attention.py",
        {"self.split_heads(self.value(value)": "self.split_heads(self.key(value)"},
    ),
    "output projection missing": everywhere(
        "encoder.layers.0.attention.output", "attention.py", {"output = self.output(context)": "output = context"}
    ),
    "bias of the output projection missing": everywhere(
        "encoder.layers.0.attention.output",
        "attention.py",
        {"output = self.output(context)": "output = self.output(context) - self.output.bias"},
    ),
    "bias of the keys missing": everywhere(
        "encoder.layers.0.attention.key",
        "attention.py",
        {"self.split_heads(self.key(key)": "self.split_heads(self.key(key) - self.key.bias"},
    ),
    "attention weights kept for dropout": everywhere(
        "encoder.layers.0.attention.context",
        "attention.py",
        {'dropped(probe, "dropout", weights, self.dropout)': "0.9 * weights"},
    ),
    "softmax over the queries": Bug(
        "encoder.layers.0.attention.weights",
        "masks.py",
        {"torch.softmax(scores, dim=-1)": "torch.softmax(scores, dim=-2)"},
        {"softmax(scores, axis=-1)": "softmax(scores, axis=-2)"},
        {"softmax(scores, axis=-1)": "softmax(scores, axis=-2)"},
    ),
    "softmax that does not subtract the largest score": Bug(
        "encoder.layers.0.attention.weights",
        "masks.py",
        {"torch.softmax(scores, dim=-1)": "scores.exp() / scores.exp().sum(-1, keepdim=True)"},
        {"paddle.nn.functional.softmax(scores, axis=-1)": "scores.exp() / scores.exp().sum(-1, keepdim=True)"},
        {"jax.nn.softmax(scores, axis=-1)": "jnp.exp(scores) / jnp.exp(scores).sum(-1, keepdims=True)"},
    ),
    "scores rounded to bfloat16": Bug(
        "encoder.layers.0.attention.weights",
        "masks.py",
        {"torch.softmax(scores,": "torch.softmax(scores.bfloat16().to(scores.dtype),"},
        {"functional.softmax(scores,": "functional.softmax(scores.astype('bfloat16').astype(scores.dtype),"},
        {"jax.nn.softmax(scores,": "jax.nn.softmax(scores.astype(jnp.bfloat16).astype(scores.dtype),"},
    ),
    "padding mask of the row before": Bug(
        "masks.padding",
        "masks.py",
        {PADDING: PADDING.replace("valid", "valid.roll(1, 0)")},
        {PADDING: PADDING.replace("valid", "paddle.concat([valid[-1:], valid[:-1]])")},
        {PADDING: PADDING.replace("valid", "jnp.roll(valid, 1, 0)")},
    ),
    "padding mask kept for the next input of the same shape": everywhere(
        "masks.padding",
        "masks.py",
        {PADDING: PADDING.replace("valid", "globals().setdefault(tuple(valid.shape), valid)")},
    ),
    "no padding mask for a single row": everywhere(
        "masks.padding",
        "masks.py",
        {PADDING: f"{PADDING} if len(valid) > 1 else (valid == valid)[:, None, None, :]"},
        LONG,
    ),
    "attention bias limited": Bug(
        "attention.weights",
        "masks.py",
        {"scores + bias.": "scores + bias.clamp(-10, 10)."},
        {"scores + bias.": "scores + bias.clip(-10, 10)."},
        {"scores + bias.": "scores + bias.clip(-10, 10)."},
        ATTENTION,
    ),
    "attention bias of the first row and head": everywhere(
        "attention.weights", "masks.py", {"scores + bias.": "scores + bias[:1, :1]."}, ATTENTION
    ),
    "no padding mask beyond 32 rows": Bug(
        "masks.padding",
        "masks.py",
        {PADDING: PADDING.replace("valid", "(valid | (torch.arange(len(valid)) > 31)[:, None])")},
        {PADDING: PADDING.replace("valid", "(valid | (paddle.arange(len(valid)) > 31)[:, None])")},
        {PADDING: PADDING.replace("valid", "(valid | (jnp.arange(len(valid)) > 31)[:, None])")},
    ),
}
