"""What the machine can do (roofline) and what it is doing (load, memory, GPU)."""
