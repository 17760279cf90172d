"""Exact decimals at the scale of their column."""

from __future__ import annotations

from decimal import Decimal, localcontext

from deltalakedb.actions.datatypes import DecimalType


def fit_decimal(value: Decimal, data_type: DecimalType) -> Decimal:
    """The same number at the scale of its type; raises ValueError where it does not fit exactly.

    Zero loses its sign: a negative zero is no value of its own in SQL.
    """
    if not value.is_finite():
        raise ValueError("it is not finite")
    # Far outside any type; quantize would need a context as large as the exponent.
    if value and not -100 < value.adjusted() < 100:
        raise ValueError(f"it does not fit {data_type}")
    with localcontext(prec=400):
        fitted = value.quantize(Decimal(1).scaleb(-data_type.scale))
        if fitted != value:
            raise ValueError(f"it has more than {data_type.scale} digits after the point")
        if not fitted:
            return abs(fitted)
    if fitted.adjusted() >= data_type.precision - data_type.scale:
        raise ValueError(f"it has more digits than {data_type} holds")
    return fitted
