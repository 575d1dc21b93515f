"""Routing on tensor cores by warps (mma.sync): passes and gradients; on every GPU since compute capability 8.0.

In reading order: :mod:`fragments` says which lane holds what of the votes; :mod:`tile` is how warps share a block, and blocks the
children; :mod:`stage` copies what they multiply to shared memory, :mod:`votes` multiplies it; :mod:`sharing` makes a softmax
of lanes and warps that share the parents; :mod:`dynamic` and :mod:`em` are the passes, :mod:`dynamic_ends` what comes
between two of dynamic routing, :mod:`parents` how EM routing's parents are read, and how their records leave a block; :mod:`launcher` says which forms fit, and launches them.

Backward, :mod:`vote_gradient` goes from the gradient of a child's votes to those of w and x; :mod:`dynamic_gradient` does so for all iterations at
once, :mod:`em_gradient` for one; :mod:`gradient_launcher` and :mod:`em_gradient_launcher` launch them and what comes before.
"""
