"""The catalogue of bugs, by name. Each module holds those of one part of the model."""

from . import attention, decoder, embeddings, generation, heads, layers, model, training

_MODULES = (embeddings, attention, layers, decoder, heads, model, generation, training)
BUGS = {name: bug for module in _MODULES for name, bug in module.BUGS.items()}

# Bugs that change no result of a public method by more than rounding does, and why.
INVISIBLE = {
    "bias of the keys missing": "it adds the same number to all scores of a query, and a softmax ignores that",
    "masking value 1 % off": "it matters only if a masked score comes as close to the others as that",
    "attention weights of a row without any allowed token": "the methods refuse such a row, or zero its result",
    "epsilon under the root": "beside positions of size 1, epsilon 1e-6 changes a deviation by 7e-7",
}
