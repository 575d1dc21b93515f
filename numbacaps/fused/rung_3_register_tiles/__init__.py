"""Rung 3: a thread computes a small tile from registers."""
