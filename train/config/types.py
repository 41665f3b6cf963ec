"""Kinds of numbers that knobs take."""

from typing import Annotated

from pydantic import Field

Fraction = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1, lt=2**31)]
Side = Annotated[int, Field(ge=1, le=1 << 14)]  # of an image, in pixels
Natural = Annotated[int, Field(ge=0, lt=2**31)]
