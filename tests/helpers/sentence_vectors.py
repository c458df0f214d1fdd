"""Vectors of texts, compared with those of the library sentence-transformers in float64, within the rounding budget."""

import numpy as np

from triglot.parity.budgets import budget


def vectors_of_the_library(folder, texts, prompt=None, dtype="float32"):
    """Return the vectors in float64, and the noise: how far those in ``dtype`` are from them."""
    import torch
    from sentence_transformers import SentenceTransformer

    native = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    truth = native.double().encode(texts, prompt_name=prompt)
    assert truth.dtype == np.float64
    native = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    rounded = native.to(getattr(torch, dtype)).encode(texts, prompt_name=prompt)
    return truth, float(np.abs(rounded - truth).max())


def limit(truth, noise, dtype="float32"):
    """Return how far correct vectors may be from the truth."""
    return budget(noise, float(np.abs(truth).max()), dtype)


def assert_vectors(vectors, truth, noise, dtype="float32"):
    """Assert that vectors are as close to the truth as those of a correct implementation."""
    assert (vectors.shape, vectors.dtype) == (truth.shape, np.float32)
    assert np.abs(vectors - truth).max() <= limit(truth, noise, dtype)


def assert_alike(vectors, others, folder, texts):
    """Assert that both may be correct: they differ by at most twice the budget of the vectors of ``texts``."""
    assert vectors.shape == others.shape
    assert np.abs(vectors - others).max(initial=0) <= 2 * limit(*vectors_of_the_library(folder, texts))
