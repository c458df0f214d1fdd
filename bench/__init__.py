"""Measurements of speed. What is computed is checked by the tests; how fast it is, is measured here."""
