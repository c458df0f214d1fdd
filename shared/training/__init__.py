"""Training that belongs to no framework: the plan, the loop, dropout masks and the toy translation task."""
