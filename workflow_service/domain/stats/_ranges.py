"""Checks of arguments that the modules of this package share."""

import math
from collections.abc import Sequence


def require_between(name: str, value: float, low: float, high: float) -> None:
    """Raise ValueError unless low < value < high; NaN never passes."""
    if not low < value < high:
        raise ValueError(f"{name} must be between {low:g} and {high:g} exclusive, got {value!r}")


def require_positive(name: str, value: float) -> None:
    """Raise ValueError unless value is finite and above 0."""
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be finite and above 0, got {value!r}")


def require_counts(n: Sequence[int], dlts: Sequence[int]) -> None:
    """Raise ValueError unless both have the same positive length and 0 <= dlts <= n at each level."""
    if not n or len(n) != len(dlts):
        raise ValueError(f"n and dlts need one entry for each dose level, got {len(n)} and {len(dlts)}")
    for level, (treated, toxic) in enumerate(zip(n, dlts, strict=True)):
        if not 0 <= toxic <= treated:
            raise ValueError(f"dose level {level} has {toxic} DLTs in {treated} patients")
