"""The audit: plant bugs in our own implementations, and measure which ones parity catches."""
