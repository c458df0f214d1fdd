"""The model on paper: configuration, recipes, parameters, named values and masks."""
