"""What a run leaves: its directory, checkpoints, figures, and the record of what ran."""
