"""Squash behind LeakyReLU, value and gradient: the formulas, and a kernel for each."""
