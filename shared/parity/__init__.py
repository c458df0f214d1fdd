"""The proof that implementations compute the same thing: judged against a truth, by its rounding noise."""
