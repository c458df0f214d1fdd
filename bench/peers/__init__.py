"""The stock encoders of the frameworks, given the same weights: what users would take if there were no Triglot."""
