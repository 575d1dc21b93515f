"""Numba's lists of pending deallocations, emptied: memory, streams, events and kernels are freed now."""

from numbacaps.device.target import SIMULATED, cuda


def free_now():
    """Free everything that is pending on the current device; nothing on the simulator."""
    if SIMULATED:
        return
    context = cuda.current_context()
    for owner in (context, context.memory_manager):
        owner.deallocations.clear()
