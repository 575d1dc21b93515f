"""Routing between capsules whose votes are never stored: dynamic and EM, forward and backward."""
