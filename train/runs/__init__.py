"""Runs beside each other: what there is, and how they came out."""
