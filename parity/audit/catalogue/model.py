"""Bugs in the model as a whole: its weights, its public methods, and what outlives a call."""

from triglot.parity.audit.bug import ATTENTION, PRE_TRAINING, Bug, everywhere, loading

AS_LINEAR = 'tensors[name].T if parameter.role == "linear_weight" else tensors[name]'
PADDED = "x, masks.padding(valid), probe"
ENCODED = 'transformer.encode(inputs["source"], inputs["valid"], inputs.get("segment_ids"), inputs.get("task_ids"))'

BUGS = {
    "key weights loaded as query weights": loading(
        "encoder.layers.0.attention.query", 'arrays[name.replace("attention.query", "attention.key")]'
    ),
    "square matrix not transposed": loading(
        "encoder.layers.0.attention.key", "(t.T if (t := arrays[name]).shape == t.shape[::-1] else t)"
    ),
    "encode ignores the mask": everywhere(
        "api.encode",
        "execution.py",
        {'encode(inputs["source"], inputs["valid"]': 'encode(inputs["source"], inputs["valid"] == inputs["valid"]'},
    ),
    "masked-LM head with another token table": everywhere(
        "heads.masked_lm", "transformer.py", {"token_table = self.": "token_table = 2 * self."}, PRE_TRAINING
    ),
    "weights read back transposed": Bug(
        "api.weights",
        "weights.py",
        {AS_LINEAR: "tensors[name]"},
        {"paddle2np(tensors[name])": "paddle2np(tensors[name]).T"},
        {"jax2np(tensors[name])": "jax2np(tensors[name]).T"},
    ),
    "weights summed over heads instead of averaged": everywhere(
        "averaged", "transformer.py", {"weights.mean(": "weights.sum("}, ATTENTION
    ),
    "key padding not masked": everywhere(
        "attention.weights",
        "execution.py",
        {'masks.padding(inputs["valid"])': 'masks.padding(inputs["valid"] == inputs["valid"])'},
        ATTENTION,
    ),
    "attention mask ignored": everywhere(
        "attention.weights",
        "execution.py",
        {', inputs["allowed"])': ', inputs["allowed"] == inputs["allowed"])'},
        ATTENTION,
    ),
    "padding mask made from lengths": Bug(
        "encoder.layers.0.attention.weights",
        "transformer.py",
        {PADDED: PADDED.replace("valid", "valid.sort(1, descending=True).values")},
        {PADDED: PADDED.replace("valid", 'valid.astype("int32").sort(1, descending=True).astype("bool")')},
        {PADDED: PADDED.replace("valid", "valid.sort(1)[:, ::-1]")},
    ),
    "padding at the left not zeroed": Bug(
        "output",
        "transformer.py",
        {'"output", torch.where(valid[': '"output", torch.where(valid.flip(1).cumsum(1).flip(1).bool()['},
        {'"output", x.masked_fill(~valid[': '"output", x.masked_fill(0 == (1 * valid).flip(1).cumsum(1).flip(1)['},
        {'"output", jnp.where(valid[': '"output", jnp.where((valid[:, ::-1].cumsum(1)[:, ::-1] > 0)['},
    ),
    "attend ignores the mask": everywhere(
        "api.attend",
        "model.py",
        {"value, allowed, key_valid, bias, batch_first)": "value, None, key_valid, bias, batch_first)"},
        ATTENTION,
    ),
    "weights rounded to float16 when loaded": loading("embeddings.sum", "arrays[name].astype(np.float16)"),
    "scales and biases of the norms swapped": loading(
        "embeddings.process.norm",
        'arrays[{"bias": name[:-4] + "scale", "cale": name[:-5] + "bias"}[name[-4:]] if "norm." in name else name]',
    ),
    "norms of a layer swapped": loading(
        "encoder.layers.0.post_feed_forward.norm", 'arrays[name.replace("post_feed_forward", "post_attention")]'
    ),
    "position table shifted by one row": loading("embeddings.sum", 'np.roll(arrays[name], int("position" in name), 0)'),
    "first layer loaded as the second": loading(
        "encoder.layers.1.attention.key", 'arrays[name.replace("layers.1.", "layers.0.")]'
    ),
    "bias of the queries loaded as zeros": loading(
        "encoder.layers.0.attention.query", 'arrays[name] * np.float32(not name.endswith("query.bias"))'
    ),
    "token table shared by all models of the process": loading(
        "embeddings.sum", 'globals().setdefault(name, arrays[name]) if "token" in name else arrays[name]'
    ),
    "last result returned for the same tokens": everywhere(
        "base.encode",
        "execution.py",
        {ENCODED: f"globals().setdefault(str(inputs['source']), {ENCODED})"},
        checks=("invariants",),
    ),
    "last result returned for inputs of the same shape": everywhere(
        "api.encode", "execution.py", {ENCODED: f"globals().setdefault(tuple(inputs['valid'].shape), {ENCODED})"}
    ),
}
