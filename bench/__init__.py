"""The benchmark: which framework is fastest where, by how much, and how far from the hardware's limit."""
