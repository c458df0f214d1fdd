"""The model on paper: configuration, recipes, parameters, named values, masks and the protocol of an implementation."""
