"""Quantities that are compared."""

from __future__ import annotations

from collections.abc import Mapping

from ssd_bench.results.quantity import QUANTITIES, Quantity

RATE = "rate"


def _order(quantity: Quantity) -> tuple[bool, bool]:
    """Order the table: times first, quantities independent of the method last."""
    return same_work(quantity), not (quantity.variation or quantity.times)


def same_work(quantity: Quantity) -> bool:
    """Return whether both sides do the same work by definition, which makes the row an A/A comparison."""
    return "method" not in quantity.arms


COMPARED: Mapping[str, Quantity] = {
    quantity.compare: quantity for quantity in sorted(QUANTITIES.values(), key=_order) if quantity.compare
}
"""Name (also in options and files) -> quantity, in the order of the table."""
