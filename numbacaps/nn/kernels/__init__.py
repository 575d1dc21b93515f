"""The kernels of a capsule network, a file each: formula, forward, backward, launchers."""
