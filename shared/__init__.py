"""What belongs to no framework: configuration, schema, checkpoints, inputs, parity. Imports none of them."""
