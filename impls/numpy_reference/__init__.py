"""The reference, in plain NumPy."""
