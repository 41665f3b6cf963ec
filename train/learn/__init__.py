"""What learns, and how its weights move."""
