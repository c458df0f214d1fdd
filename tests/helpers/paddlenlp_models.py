"""BERT and ERNIE as PaddleNLP builds them, in Paddle's own layers, to write and read its files without the library.

Source: PaddleNLP 2.8.1, ``paddlenlp/transformers/bert/modeling.py``, ``ernie/modeling.py`` and ``layers/linear.py``.
The attributes have the names of that code, so ``state_dict()`` has the names and layouts of its files.
"""

import json

import numpy as np
import paddle
from paddle import nn
from paddle.nn import functional as F  # noqa: N812

SIZES = {
    "vocab_size": 61,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "max_position_embeddings": 19,
    "type_vocab_size": 3,
    "pad_token_id": 0,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
}
EPSILON = 1e-12
MASKED = -1e4


class TransposedLinear(nn.Layer):
    """A linear layer with the weight (out, in)."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = self.create_parameter([outputs, inputs])
        self.bias = self.create_parameter([outputs], is_bias=True)

    def forward(self, x):
        return F.linear(x, self.weight.T, self.bias)


class Embeddings(nn.Layer):
    def __init__(self, fields, tasks):
        super().__init__()
        size = fields["hidden_size"]
        self.word_embeddings = nn.Embedding(fields["vocab_size"], size)
        self.position_embeddings = nn.Embedding(fields["max_position_embeddings"], size)
        self.token_type_embeddings = nn.Embedding(fields["type_vocab_size"], size)
        if tasks:
            self.task_type_embeddings = nn.Embedding(tasks, size)
        self.layer_norm = nn.LayerNorm(size)

    def forward(self, ids, segments, tasks):
        total = self.word_embeddings(ids) + self.position_embeddings(paddle.arange(ids.shape[1]))
        total += self.token_type_embeddings(segments)
        if tasks is not None:
            total += self.task_type_embeddings(tasks)
        return self.layer_norm(total)


class Pooler(nn.Layer):
    def __init__(self, size):
        super().__init__()
        self.dense = nn.Linear(size, size)

    def forward(self, states):
        return paddle.tanh(self.dense(states[:, 0]))


class Body(nn.Layer):
    def __init__(self, fields, tasks):
        super().__init__()
        size = fields["hidden_size"]
        self.embeddings = Embeddings(fields, tasks)
        layer = nn.TransformerEncoderLayer(
            size, fields["num_attention_heads"], fields["intermediate_size"], 0.0, fields["hidden_act"]
        )
        self.encoder = nn.TransformerEncoder(layer, fields["num_hidden_layers"])
        self.pooler = Pooler(size)

    def forward(self, ids, valid, segments, tasks):
        mask = (1.0 - valid.astype("float32")).unsqueeze([1, 2]) * MASKED
        states = self.encoder(self.embeddings(ids, segments, tasks), mask)
        return states, self.pooler(states)


class Predictions(nn.Layer):
    def __init__(self, fields):
        super().__init__()
        size = fields["hidden_size"]
        self.transform = nn.Linear(size, size)
        self.activation = getattr(F, fields["hidden_act"])
        self.layer_norm = nn.LayerNorm(size)
        self.decoder = TransposedLinear(size, fields["vocab_size"])
        self.decoder_bias = self.decoder.bias

    def forward(self, states):
        return self.decoder(self.layer_norm(self.activation(self.transform(states))))


class PretrainingHeads(nn.Layer):
    def __init__(self, fields, *, has_pairs):
        super().__init__()
        self.predictions = Predictions(fields)
        if has_pairs:
            self.seq_relationship = nn.Linear(fields["hidden_size"], 2)


class Task(nn.Layer):
    """A class of PaddleNLP; ``name`` is what follows the type in its name."""

    def __init__(self, kind, name, fields, *, classes=2, tasks=0, tied=True):
        super().__init__()
        self.kind, self.name, self.body = kind, name, [Body(fields, tasks)]  # in a list: Paddle does not name it
        setattr(self, kind, self.body[0])
        if name in ("ForPretraining", "ForMaskedLM"):
            self.cls = PretrainingHeads(fields, has_pairs=name == "ForPretraining")
            if tied:
                self.cls.predictions.decoder.weight = self.body[0].embeddings.word_embeddings.weight
        elif name != "Model":
            self.classifier = nn.Linear(fields["hidden_size"], classes)

    def forward(self, ids, valid, segments, tasks=None):
        states, pooled = self.body[0](ids, valid, segments, tasks)
        values = {"output": states, "heads.pooler": pooled}
        if hasattr(self, "cls"):
            values["heads.masked_lm"] = self.cls.predictions(states)
        if self.name == "ForPretraining":
            values["heads.next_sentence"] = self.cls.seq_relationship(pooled)
        if self.name == "ForSequenceClassification":
            values["heads.sequence_classifier"] = self.classifier(pooled)
        if self.name == "ForTokenClassification":
            values["heads.token_classifier"] = self.classifier(states)
        return values

    @property
    def saved(self):
        """What PaddleNLP saves: the bare body without a prefix."""
        return self.body[0] if self.name == "Model" else self


def build(kind, name, **options):
    """Return a model with random weights, in which no norm or bias is the identity."""
    model = Task(kind, name, SIZES, **options)
    generator = np.random.default_rng(0)
    for layer in model.sublayers(include_self=True):
        if isinstance(layer, nn.LayerNorm):
            layer._epsilon = EPSILON
    for parameter in model.parameters():
        parameter.set_value(parameter.numpy() + generator.standard_normal(parameter.shape, np.float32) * 0.2)
    model.eval()
    return model


def save(model, folder, fields, *, old=False):
    """Save a folder as PaddleNLP does, or as its versions before 2.5 did."""
    name = model.kind.capitalize() + model.name
    folder.mkdir()
    paddle.save(model.saved.state_dict(), str(folder / "model_state.pdparams"))
    if not old:
        content = {**SIZES, "architectures": [name], "model_type": model.kind, "paddlenlp_version": None, **fields}
        (folder / "config.json").write_text(json.dumps(content))
        return
    base = {**SIZES, "init_class": f"{model.kind.capitalize()}Model", **fields}
    content = base if model.name == "Model" else {"init_args": [base, 2], "init_class": name}
    (folder / "model_config.json").write_text(json.dumps(content))


def outputs(model, batch):
    """Return the values that a model computes, by the names of Triglot."""
    arrays = (batch.source, batch.valid, batch.segment_ids, batch.task_ids)
    with paddle.no_grad():
        values = model(*(None if array is None else paddle.to_tensor(np.asarray(array)) for array in arrays))
    return {name: value.numpy() for name, value in values.items()}
