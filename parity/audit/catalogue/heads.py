"""Bugs in the heads."""

import numpy as np

from triglot.parity.audit.bug import ANNOTATED, CLASSIFIER, DISCRIMINATOR, PRE_TRAINING, Bug, everywhere

SCORED = "log_softmax(self.log_probabilities(x))"
EVEN = "({}.arange(len(self.bias)) % 2 == 0)"
BANNED = {"heads.masked_lm.bias": np.where(np.arange(PRE_TRAINING.source_vocabulary) == 4, -1e9, 0.01)}

BUGS = {
    "pooler reads the last token": everywhere(
        "heads.pooler", "heads.py", {"self.pooler(x[:, 0])": "self.pooler(x[:, -1])"}
    ),
    "masked-LM head without its norm": everywhere(
        "heads.masked_lm.norm", "heads.py", {"self.norm(x)": "x"}, PRE_TRAINING
    ),
    "masked-LM head without its activation": everywhere(
        "heads.masked_lm.activation", "heads.py", {"self.activation(x)": "x"}, PRE_TRAINING
    ),
    "masked-LM head without its bias": Bug(
        "heads.masked_lm",
        "heads.py",
        {"table, self.bias)": "table)"},
        {" + self.bias": ""},
        {" + self.bias": ""},
        PRE_TRAINING,
    ),
    "masked-LM scores at padding": Bug(
        "heads.masked_lm",
        "heads.py",
        {"where(valid[:, :, None], scores,": "where(valid[:, :, None] == valid[:, :, None], scores,"},
        {"masked_fill(~valid[:, :, None],": "masked_fill(valid[:, :, None] != valid[:, :, None],"},
        {"where(valid[:, :, None], scores,": "where(valid[:, :, None] == valid[:, :, None], scores,"},
        PRE_TRAINING,
    ),
    "next-sentence head without the pooler": everywhere(
        "heads.next_sentence", "heads.py", {'outputs["pooler"]))': "x[:, 0]))"}, PRE_TRAINING
    ),
    "scores instead of log-probabilities": everywhere(
        "heads.log_probabilities", "heads.py", {SCORED: "self.log_probabilities(x)"}, ANNOTATED
    ),
    "log-probabilities over the wrong axis": Bug(
        "heads.log_probabilities",
        "heads.py",
        {SCORED: "log_softmax(self.log_probabilities(x).swapaxes(1, 2)).swapaxes(1, 2)"},
        {SCORED: "log_softmax(self.log_probabilities(x).transpose([0, 2, 1])).transpose([0, 2, 1])"},
        {SCORED: "log_softmax(self.log_probabilities(x).swapaxes(1, 2)).swapaxes(1, 2)"},
        ANNOTATED,
    ),
    "pooler reads the first real token": Bug(
        "heads.pooler",
        "heads.py",
        {"self.pooler(x[:, 0])": "self.pooler(x[range(len(x)), valid.int().argmax(1)])"},
        {"self.pooler(x[:, 0])": "self.pooler(x[list(range(len(x))), valid.astype('int32').argmax(1)])"},
        {"self.pooler(x[:, 0])": "self.pooler(x[jnp.arange(len(x)), valid.argmax(1)])"},
    ),
    "masked-LM table rolled by one row, beside a banned token": Bug(
        "heads.masked_lm",
        "heads.py",
        {"linear(x, table, self.bias)": "linear(x, table.roll(1, 0), self.bias)"},
        {"matmul(x, table, transpose_y": "matmul(x, table.roll(1, 0), transpose_y"},
        {"x @ table.T": "x @ jnp.roll(table, 1, 0).T"},
        PRE_TRAINING,
        BANNED,
    ),
    "every other bias of the masked-LM head dropped, beside a banned token": Bug(
        "heads.masked_lm",
        "heads.py",
        {"table, self.bias)": f"table, self.bias * {EVEN.format('torch')})"},
        {" + self.bias": f" + self.bias * {EVEN.format('paddle')}.astype(x.dtype)"},
        {" + self.bias": f" + self.bias * {EVEN.format('jnp')}"},
        PRE_TRAINING,
        BANNED,
    ),
    "pooler without its tanh": everywhere(
        "heads.pooler", "heads.py", {"self.pooler_activation(self.pooler(x[:, 0]))": "self.pooler(x[:, 0])"}
    ),
    "tanh in the pooler of a model that has a ReLU": everywhere(
        "heads.pooler", "heads.py", {"[config.pooler_activation]": '["tanh"]'}, CLASSIFIER
    ),
    "sequence classifier without the pooler": everywhere(
        "heads.sequence_classifier",
        "heads.py",
        {'self.sequence_classifier(outputs["pooler"])': "self.sequence_classifier(x[:, 0])"},
        CLASSIFIER,
    ),
    "classes of the sequence classifier in reverse order": Bug(
        "heads.sequence_classifier",
        "heads.py",
        {'self.sequence_classifier(outputs["pooler"])': 'self.sequence_classifier(outputs["pooler"]).flip(1)'},
        {'self.sequence_classifier(outputs["pooler"])': 'self.sequence_classifier(outputs["pooler"]).flip(1)'},
        {'self.sequence_classifier(outputs["pooler"])': 'self.sequence_classifier(outputs["pooler"])[:, ::-1]'},
        CLASSIFIER,
    ),
    "token classifier reads the first token only": everywhere(
        "heads.token_classifier",
        "heads.py",
        {"self.token_classifier(x)": "self.token_classifier(x[:, :1] + 0 * x)"},
        CLASSIFIER,
    ),
    "replaced-token head without its activation": everywhere(
        "heads.replaced_token.activation",
        "heads.py",
        {"self.activation(x)": "x"},
        DISCRIMINATOR,
    ),
    "replaced-token scores with the wrong sign": everywhere(
        "heads.replaced_token", "heads.py", {"self.output(x)[:, :, 0]": "-self.output(x)[:, :, 0]"}, DISCRIMINATOR
    ),
    "replaced-token scores at padding": Bug(
        "heads.replaced_token",
        "heads.py",
        {"torch.where(valid, scores, 0.0)": "scores"},
        {"scores.masked_fill(~valid, paddle.zeros([], scores.dtype))": "scores"},
        {"jnp.where(valid, scores, 0.0)": "scores"},
        DISCRIMINATOR,
    ),
    "pooler averages the tokens": everywhere(
        "heads.pooler", "heads.py", {"self.pooler(x[:, 0])": "self.pooler(x.mean(1))"}
    ),
    "next-sentence classes swapped": Bug(
        "heads.next_sentence",
        "heads.py",
        {'self.next_sentence(outputs["pooler"])': 'self.next_sentence(outputs["pooler"]).flip(1)'},
        {'self.next_sentence(outputs["pooler"])': 'self.next_sentence(outputs["pooler"]).flip(1)'},
        {'self.next_sentence(outputs["pooler"])': 'self.next_sentence(outputs["pooler"])[:, ::-1]'},
        PRE_TRAINING,
    ),
    "masked-LM head without its transform": everywhere(
        "heads.masked_lm.transform", "heads.py", {"self.transform(x))": "x)"}, PRE_TRAINING
    ),
}
