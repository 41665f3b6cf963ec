"""The half that needs torch, in the environment or image."""
