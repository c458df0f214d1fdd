"""The sweep: what is timed (arms, cases), in which processes (workers), and in which order (sweep)."""
