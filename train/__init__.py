"""Lockstep: a reproducible PyTorch training stack."""

__version__ = "0.1.0"
