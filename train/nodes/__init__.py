"""Several machines: whether all are there, whether they reach each other, and torchrun's agent."""
