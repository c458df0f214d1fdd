"""The audit: bugs planted in our own implementations, to measure what the verdict sees and what it does not."""
