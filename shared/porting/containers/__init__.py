"""How tensors are stored: one module per file format. None of them unpickles."""
