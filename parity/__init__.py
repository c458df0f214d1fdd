"""The parity harness: prove that every implementation computes the same thing, or find where one first does not."""
