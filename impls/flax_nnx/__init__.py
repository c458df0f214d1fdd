"""The implementation in Flax NNX."""
