"""Scripts that use the toolkit: run each as ``python -m experiments.NAME``.

Imports point one way: experiments use numbacaps and reference, which know nothing of experiments.
"""
