"""Stand-alone measurements, each with a make target."""
