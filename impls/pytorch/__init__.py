"""The implementation in PyTorch."""
