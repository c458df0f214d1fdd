"""Small configurations of each kind of model that reads tokens or vectors."""

from dataclasses import replace

from triglot.shared.model.recipes import recipe

BERT = recipe("bert-base-tiny")  # 101 tokens, 2 segments, no tasks, at most 37 tokens
BERT_WITH_HEADS = replace(BERT, heads_on_top=("pooler", "masked_lm"), tied_embeddings=True)
ERNIE = recipe("ernie-base-tiny")
TRANSLATION = recipe("translation-tiny")  # 39 tokens to 41, at most 19 to 23; the id 2 is padding
EMBEDDED = recipe("dygraph-tiny")  # no vocabulary: takes vectors (B, S, 24)
EMBEDDED_PAIR = replace(EMBEDDED, kind="encoder_decoder", decoder_layers=1, target_max_length=23)  # and (B, T, 24)
VECTORS = replace(  # BERT without its embeddings
    BERT,
    heads_on_top=(),
    tied_embeddings=False,
    source_vocabulary=0,
    segments=0,
    positions="none",
    embedding_process="",
    pad_id=None,
)
