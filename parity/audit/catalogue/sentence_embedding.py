"""Bugs in sentence embeddings."""

from triglot.parity.audit.bug import EMBEDDING, POOLED_FIRST, POOLED_MAX, Bug, everywhere

_FILE = "sentence_embedding.py"
_PATH = "heads.sentence_embedding"
_POOLED = f"{_PATH}.pooled"
_POOLING = "POOLINGS[config.sentence_pooling]"

BUGS = {
    "mean over the padding too": Bug(
        _POOLED,
        _FILE,
        {"valid.sum(dim=1, keepdim=True).clamp(min=1)": "valid.shape[1]"},
        {"valid.astype(total.dtype).sum(axis=1, keepdim=True).clip(min=1)": "valid.shape[1]"},
        {"jnp.maximum(valid.sum(axis=1, keepdims=True), 1)": "valid.shape[1]"},
        EMBEDDING,
    ),
    "mean divided by the square root of the length": Bug(
        _POOLED,
        _FILE,
        {".clamp(min=1)": ".clamp(min=1) ** 0.5"},
        {".clip(min=1)": ".clip(min=1) ** 0.5"},
        {"jnp.maximum(valid.sum(axis=1, keepdims=True), 1)": "jnp.maximum(valid.sum(axis=1, keepdims=True), 1) ** 0.5"},
        EMBEDDING,
    ),
    "NaN for a row without real tokens": Bug(
        _POOLED,
        _FILE,
        {".clamp(min=1)": ""},
        {".clip(min=1)": ""},
        {"jnp.maximum(valid.sum(axis=1, keepdims=True), 1)": "valid.sum(axis=1, keepdims=True)"},
        EMBEDDING,
        checks=("steps",),
    ),
    "cls where the model has the mean": everywhere(_POOLED, _FILE, {_POOLING: 'POOLINGS["cls"]'}, EMBEDDING),
    "mean where the model has cls": everywhere(_POOLED, _FILE, {_POOLING: 'POOLINGS["mean"]'}, POOLED_FIRST),
    "cls of the first column": Bug(
        _POOLED,
        _FILE,
        {"torch.where(first[:, :, None], x, 0.0).sum(dim=1)": "x[:, 0]"},
        {"x.masked_fill(~first[:, :, None], paddle.zeros([], x.dtype)).sum(axis=1)": "x[:, 0]"},
        {"jnp.where(first[:, :, None], x, 0.0).sum(axis=1)": "x[:, 0]"},
        POOLED_FIRST,
    ),
    "maximum over the padding too": Bug(
        _POOLED,
        _FILE,
        {"torch.where(valid[:, :, None], x, -torch.inf)": "x"},
        {"x.masked_fill(~valid[:, :, None], paddle.full([], -math.inf, x.dtype))": "x"},
        {"jnp.where(valid[:, :, None], x, -jnp.inf)": "x"},
        POOLED_MAX,
    ),
    "maximum of the magnitudes": Bug(
        _POOLED,
        _FILE,
        {"(valid[:, :, None], x, -torch.inf)": "(valid[:, :, None], x.abs(), -torch.inf)"},
        {"x.masked_fill(~valid[:, :, None], paddle.full([]": "x.abs().masked_fill(~valid[:, :, None], paddle.full([]"},
        {"(valid[:, :, None], x, -jnp.inf)": "(valid[:, :, None], abs(x), -jnp.inf)"},
        POOLED_MAX,
    ),
    "embedding not normalised": everywhere(_PATH, _FILE, {"normalize(x) if self.normalized else x": "x"}, EMBEDDING),
    "embedding normalised by the largest entry": Bug(
        _PATH,
        _FILE,
        {"torch.linalg.vector_norm(wide, dim=-1, keepdim=True)": "wide.abs().amax(dim=-1, keepdim=True)"},
        {"paddle.sqrt((wide * wide).sum(axis=-1, keepdim=True))": "wide.abs().max(axis=-1, keepdim=True)"},
        {"jnp.linalg.norm(wide, axis=-1, keepdims=True)": "abs(wide).max(axis=-1, keepdims=True)"},
        EMBEDDING,
    ),
    "embedding normalised over the batch": Bug(
        _PATH,
        _FILE,
        {"vector_norm(wide, dim=-1": "vector_norm(wide, dim=0"},
        {"(wide * wide).sum(axis=-1": "(wide * wide).sum(axis=0"},
        {"norm(wide, axis=-1": "norm(wide, axis=0"},
        EMBEDDING,
    ),
    "shortest length 1e-6 for 1e-12": everywhere(
        _PATH, _FILE, {"LEAST_LENGTH = 1e-12": "LEAST_LENGTH = 1e-6"}, EMBEDDING
    ),
    "length of zero divided by": Bug(
        _PATH,
        _FILE,
        {"length.clamp(min=LEAST_LENGTH)": "length"},
        {"paddle.maximum(length, paddle.full([], LEAST_LENGTH, wide.dtype))": "length"},
        {"jnp.maximum(length, LEAST_LENGTH)": "length"},
        EMBEDDING,
        checks=("steps",),
    ),
    "linear layer of a dense layer skipped": everywhere(
        f"{_PATH}.dense.0.linear",
        _FILE,
        {'x = observe(probe, "linear", self.linear(x))': 'x = observe(probe, "linear", x)'},
        EMBEDDING,
    ),
    "dense layer without its activation": everywhere(
        f"{_PATH}.dense.0.activation", _FILE, {"self.activation(x)": "x"}, EMBEDDING
    ),
    "second dense layer with the weights of the first": everywhere(
        f"{_PATH}.dense.1.linear",
        _FILE,
        {"enumerate(self.dense)": "enumerate([self.dense[0], self.dense[0]])"},
        EMBEDDING,
    ),
}
