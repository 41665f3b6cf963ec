"""The host's side of the container: which CUDA line, which engine, which Compose command.

Standard library only, and Python 3.9, so that it runs before anything is installed.
"""
