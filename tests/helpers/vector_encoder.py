"""An encoder of vectors, which the libraries of every framework can run."""

from triglot.shared.model.config import ModelConfig

VECTOR_ENCODER = ModelConfig(
    hidden_size=24,
    layers=2,
    heads=3,
    key_size=8,
    value_size=8,
    feed_forward_size=24,  # square, so that no shape shows a transposed matrix
    source_vocabulary=0,
    source_max_length=512,
    positions="none",
    pre_process="n",
    post_process="da",
    final_process="n",
    norm_eps=1e-5,
    activation="gelu",
    masking="exclude",
)
