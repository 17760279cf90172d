"""Single-precision numbers in a language that has only double ones."""

from __future__ import annotations

import math
import struct


def to_float32(number: float) -> float:
    """The nearest single-precision number; raises OverflowError beyond their range."""
    rounded: float = struct.unpack("<f", struct.pack("<f", number))[0]
    return rounded


def shortest_float32(number: float) -> float:
    """The double whose `repr` is the shortest text that reads back as this float32.

    `to_float32(0.1)` is 0.10000000149011612 in double precision; its shortest text is `0.1`.
    """
    single = to_float32(number)
    if not math.isfinite(single):
        return single
    for digits in range(6, 9):
        candidate = float(f"{single:.{digits}g}")
        try:
            if to_float32(candidate) == single:
                return candidate
        except OverflowError:
            # Rounding up the largest float32 leaves its range; more digits stay inside.
            continue
    return float(f"{single:.9g}")
