"""Rung 6: operands swapped, a small kernel stays in registers."""
