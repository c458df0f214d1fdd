"""Trials: each asks every framework the same question, and judges the answers. ``trial.py`` says what a trial is."""
