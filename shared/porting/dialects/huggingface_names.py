"""The names of the dialect ``huggingface``: canonical name -> name there, a bijection for any one configuration."""

from triglot.shared.errors import PortingError
from triglot.shared.model import schema
from triglot.shared.model.config import ModelConfig

_MODULES = {
    "embeddings.token": "embeddings.word_embeddings",
    "embeddings.position": "embeddings.position_embeddings",
    "embeddings.segment": "embeddings.token_type_embeddings",
    "embeddings.task": "embeddings.task_type_embeddings",
    "embeddings.process.norm": "embeddings.LayerNorm",
    "heads.pooler": "pooler.dense",
    "heads.masked_lm.transform": "cls.predictions.transform.dense",
    "heads.masked_lm.norm": "cls.predictions.transform.LayerNorm",
    "heads.masked_lm.decoder": "cls.predictions.decoder",
    "heads.masked_lm": "cls.predictions",
    "heads.next_sentence": "cls.seq_relationship",
}
_LAYER_MODULES = {
    "attention.query": "attention.self.query",
    "attention.key": "attention.self.key",
    "attention.value": "attention.self.value",
    "attention.output": "attention.output.dense",
    "post_attention.norm": "attention.output.LayerNorm",
    "feed_forward.inner": "intermediate.dense",
    "feed_forward.output": "output.dense",
    "post_feed_forward.norm": "output.LayerNorm",
}


def names(config: ModelConfig) -> dict[str, str]:
    """Return the name, without a prefix, of every parameter of ``config`` by canonical name.

    Raises:
        PortingError: the configuration has a parameter that this dialect cannot name.
    """
    table: dict[str, str] = {}
    for name, parameter in schema.parameters(config).items():
        path, leaf = name.rsplit(".", 1)
        prefix, modules = "", _MODULES
        if path.startswith("encoder.layers."):
            _, _, layer, path = path.split(".", 3)
            prefix, modules = f"encoder.layer.{layer}.", _LAYER_MODULES
        if path not in modules:
            raise PortingError(
                f"the dialect huggingface has no name for {name}; it expresses only post-norm BERT and ERNIE"
            )
        native_leaf = "weight" if parameter.role == "scale" else leaf
        table[name] = f"{prefix}{modules[path]}.{native_leaf}"
    return table
