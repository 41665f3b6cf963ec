"""What the user can mend, before a container or an environment is there."""

from __future__ import annotations


class HostError(Exception):
    """One line: what is wrong, and how to mend it. Exit codes as in the README."""

    def __init__(self, problem: str, fix: str, code: int = 6) -> None:
        super().__init__(f"error: {problem} → {fix}")
        self.problem, self.fix = problem, fix
        self.code = code
