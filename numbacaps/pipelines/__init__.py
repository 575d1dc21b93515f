"""Whole convolutions, one file an algorithm; :mod:`numbacaps.pipelines.registry` lists them."""
