"""Trained weights in formats that others read, each checked against the checkpoint."""
