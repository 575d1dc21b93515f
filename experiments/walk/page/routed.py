"""Dynamic routing over the digit's capsules: every child's couplings, iteration after iteration.

An output position's window is routed by itself: as large as the input, it gives every child a
kernel capsule of its own.
"""

import numpy as np

import numbacaps
import reference
from reference.routing import dynamic_routing, routing_votes

ITERATIONS = 5
_MOST_POSITIONS = 9


def routed(trace):
    """Route the windows that hold the most ink, for 1 to :data:`ITERATIONS` iterations.

    Parameters
    ----------
    trace : experiments.walk.records.Trace

    Returns
    -------
    dict
        ``positions``: the l of each window; ``couplings``: (position, iteration, p, q), rounded;
        ``lengths`` of the parents' capsules: (position, iteration, p); ``error``: how far couplings
        are from the loop reference's.

    Raises
    ------
    ArithmeticError
        They are not the reference's.
    """
    g, array = trace.plan.geometry, {name: o.array for name, o in trace.operands.items()}
    ink = np.abs(array["I_flat"][0]).sum(axis=(1, 2, 3, 4))
    positions = sorted(np.argsort(-ink, kind="stable")[:_MOST_POSITIONS].tolist())
    x = array["I_flat"][0, positions].reshape(-1, g.C, g.KH, g.KW, g.G, g.D1, g.D2)
    steps = [_routed(x, array["K"], iterations) for iterations in range(1, ITERATIONS + 1)]
    error = max(_error(x, array["K"], t + 1, couplings) for t, (couplings, _) in enumerate(steps))
    limit = reference.tolerance(x.dtype, g.Q * g.D2 * g.E3)
    if error > limit:
        raise ArithmeticError(
            f"couplings are {error:.1e} off the reference, of {limit:.1e} allowed"
        )
    couplings, lengths = (np.stack(parts, axis=1) for parts in zip(*steps))
    return {
        "positions": positions,
        "couplings": couplings.astype(float).round(4).tolist(),
        "lengths": lengths.astype(float).round(4).tolist(),
        "error": error,
    }


def _routed(x, w, iterations):
    """Couplings (N, P, Q) and lengths of the parents (N, P), as the kernels wrote them."""
    parents, couplings = numbacaps.capsule_routing(
        x, w, iterations=iterations, couplings=True, product="gab,gbc->gac", algorithm="fused"
    )
    flat = parents.reshape(*parents.shape[:2], -1)
    return couplings.reshape(*couplings.shape[:2], -1), np.linalg.norm(flat, axis=-1)


def _error(x, w, iterations, couplings):
    """Largest difference from the loop reference's couplings, which are (1, Q, P) of an image."""
    votes, _ = routing_votes(x.astype(np.float64), w.astype(np.float64))
    expected = [dynamic_routing(image, iterations)[1][0].T for image in votes]
    return float(np.abs(couplings - np.array(expected)).max())
