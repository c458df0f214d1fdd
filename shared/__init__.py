"""What belongs to no framework: configuration, inputs, checkpoints, porting, training. Imports no framework."""
