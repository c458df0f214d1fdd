"""How tensors are named and laid out: one module per dialect, each with one invertible table of names."""
