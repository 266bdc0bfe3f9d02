"""The formulas of capacity, and the questions answered with them."""
