"""This process and the others: how they are started, watched, stopped, and what they need."""
