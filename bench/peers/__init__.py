"""The peers: stock encoders of the frameworks with the same weights, which users would otherwise choose."""
