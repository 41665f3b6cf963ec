"""The arithmetic of a CPU or GPU: held to what others share, and told apart by its results."""
