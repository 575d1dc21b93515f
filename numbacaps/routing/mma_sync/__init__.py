"""Routing on tensor cores by warps (mma.sync): passes, and dynamic routing's gradients; on every GPU since compute capability 8.0.

In reading order: :mod:`fragments` says which lane holds what of the votes; :mod:`tile` is how warps share a block, and blocks the
children; :mod:`stage` copies what they multiply to shared memory, :mod:`votes` multiplies it; :mod:`sharing` makes a softmax
of lanes and warps that share the parents; :mod:`dynamic` and :mod:`em` are the passes, :mod:`dynamic_ends` what comes
between two of dynamic routing; :mod:`launcher` says which forms fit, and launches them. :mod:`dynamic_gradient` has the gradients of w and x,
:mod:`gradient_launcher` launches it and what comes before.
"""
