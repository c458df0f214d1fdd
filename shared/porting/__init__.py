"""Weights from other libraries to the neutral checkpoint and back."""
