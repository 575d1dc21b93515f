"""All that Numba has listed to be freed, freed now."""

from numbacaps.device.target import SIMULATED, cuda


def free_now():
    """Free memory, streams, events and kernels that nothing refers to, of the current device."""
    if SIMULATED:
        return
    context = cuda.current_context()
    for owner in (context, context.memory_manager):
        owner.deallocations.clear()
