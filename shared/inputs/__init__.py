"""Batches: checked, random, from a file, or from real text."""
