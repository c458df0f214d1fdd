"""Bugs in the decoder and its embeddings."""

from triglot.parity.audit.bug import ANNOTATED, TRANSLATION, VECTORS, Bug, everywhere

DECODED = "masks.combine(masks.padding(target_valid), masks.causal("
MEMORY = "memory, masks.padding(valid)"
LAST = "self.config.source_max_length - 1"

BUGS = {
    "no causal mask": everywhere(
        "decoder.layers.0.self_attention.weights",
        "transformer.py",
        {DECODED: DECODED.replace("masks.causal(", "masks.causal(1 + 0 * ")},
        TRANSLATION,
    ),
    "target padding not masked": everywhere(
        "decoder.layers.0.self_attention.weights",
        "transformer.py",
        {DECODED: DECODED.replace("target_valid", "target_valid == target_valid")},
        TRANSLATION,
    ),
    "source padding not masked in the decoder": everywhere(
        "decoder.layers.0.cross_attention.weights",
        "transformer.py",
        {"memory, masks.padding(valid), probe": "memory, masks.padding(valid == valid), probe"},
        TRANSLATION,
    ),
    "memory not normalised": everywhere(
        "decoder.layers.0.memory.norm", "decoder.py", {"if self.config.normalize_memory:": "if False:"}, TRANSLATION
    ),
    "memory normalised by another norm": everywhere(
        "decoder.layers.0.memory.norm",
        "decoder.py",
        {"self.pre_cross_attention(memory": "self.pre_self_attention(memory"},
        TRANSLATION,
    ),
    "memory normalised where it must not be": everywhere(
        "decoder.layers.0.cross_attention.key",
        "decoder.py",
        {"project(memory, memory": "project(*[self.pre_cross_attention(memory)] * 2"},
        ANNOTATED,
    ),
    "cross-attention reads the target": everywhere(
        "decoder.layers.0.cross_attention.key",
        "decoder.py",
        {"self.project_memory(memory, probe)": "self.project_memory(x[:, : memory.shape[1]], probe)"},
        ANNOTATED,
    ),
    "keys and values of the memory swapped": everywhere(
        "decoder.layers.0.cross_attention.scores",
        "decoder.py",
        {"keys, values = self.project_memory(memory, probe)": "values, keys = self.project_memory(memory, probe)"},
        TRANSLATION,
    ),
    "final norm of the decoder missing": everywhere(
        "decoder.final.norm", "decoder.py", {'self.final(x, probe=under(probe, "final"))': "x"}, ANNOTATED
    ),
    "source tokens looked up in the target table": everywhere(
        "embeddings.sum", "transformer.py", {"self.embeddings(x,": "self.target_embeddings(x,"}, TRANSLATION
    ),
    "target positions that start at 1": everywhere(
        "target_embeddings.sum",
        "transformer.py",
        {"None, None, first_position, probe": "None, None, first_position + 1, probe"},
        TRANSLATION,
    ),
    "cross-attention by the weights of the self-attention": everywhere(
        "decoder.layers.0.cross_attention.query",
        "decoder.py",
        {"self.cross_attention.attend(x": "self.self_attention.attend(x"},
        TRANSLATION,
    ),
    "decoder without its feed-forward network": everywhere(
        "decoder.layers.0.feed_forward.inner",
        "decoder.py",
        {'self.feed_forward(x, probe=under(probe, "feed_forward"))': "x"},
        TRANSLATION,
    ),
    "last layer of the decoder skipped": everywhere(
        "decoder.layers.1.pre_self_attention.norm",
        "decoder.py",
        {"enumerate(self.layers)": "enumerate(list(self.layers)[:-1])"},
        TRANSLATION,
    ),
    "residual of the cross-attention from before the self-attention": everywhere(
        "decoder.layers.0.post_cross_attention.residual",
        "decoder.py",
        {"        residual = x\n        x = self.pre_cross_attention": "        x = self.pre_cross_attention"},
        TRANSLATION,
    ),
    "target vectors scaled like embeddings": everywhere(
        "decoder.layers.0.self_attention.key",
        "transformer.py",
        {"x = target\n": "x = target * self.config.hidden_size**0.5\n"},
        VECTORS,
    ),
    "decoded vectors at padding not zeroed": Bug(
        "decoded",
        "transformer.py",
        {'"decoded", torch.where(target_valid[:, :, None], x, 0.0)': '"decoded", x'},
        {'"decoded", x.masked_fill(~target_valid[:, :, None], paddle.zeros([], x.dtype))': '"decoded", x'},
        {'"decoded", jnp.where(target_valid[:, :, None], x, 0.0)': '"decoded", x'},
        VECTORS,
    ),
    "memory cut to the length of the target": everywhere(
        "decoder.layers.0.cross_attention.key",
        "transformer.py",
        {MEMORY: "memory[:, : x.shape[1]], masks.padding(valid[:, : x.shape[1]])"},
        ANNOTATED,
    ),
    "source padding seen beside targets without padding": everywhere(
        "decoder.layers.0.cross_attention.weights",
        "transformer.py",
        {MEMORY: "memory, masks.padding(valid | target_valid.all())"},
        TRANSLATION,
    ),
    "target positions limited by the length of sources": Bug(
        "target_embeddings.sum",
        "embeddings.py",
        {"token_ids.device) + first": f"token_ids.device).clamp(max={LAST}) + first"},
        {"paddle.arange(length)": f"paddle.arange(length).clip(max={LAST})"},
        {"jnp.arange(length)": f"jnp.arange(length).clip(max={LAST})"},
        TRANSLATION,
    ),
    "bias of the logits missing": everywhere(
        "heads.logits",
        "heads.py",
        {"scores = self.logits(x)": "scores = self.logits(x) - self.logits.bias"},
        TRANSLATION,
    ),
}
