"""Groups of fields of a configuration."""

DECODER_SIZES = ("decoder_layers", "target_vocabulary", "target_max_length")
SIZES = ("hidden_size", "layers", "heads", "key_size", "value_size", "feed_forward_size", "source_max_length")
DROPOUTS = (
    *("embedding_dropout", "residual_dropout", "attention_dropout", "attention_output_dropout"),
    *("feed_forward_dropout", "feed_forward_output_dropout"),
)
DECODER_HEADS = ("logits", "log_probabilities")
