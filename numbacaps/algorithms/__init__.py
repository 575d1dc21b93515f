"""Whole convolutions, one file an algorithm; :mod:`numbacaps.algorithms.registry` lists them."""
