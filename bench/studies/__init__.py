"""Measurements of their own, each with a make target."""
