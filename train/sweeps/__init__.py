"""Trainings of one experiment with other knobs: planned, run side by side, and compared."""
