"""The host's side of the container: which CUDA line, which engine, which Compose command.

Standard library only, and Python 3.8, so that it runs before anything is installed.
"""
