"""A whole pass of a network that fits in one multiprocessor as one kernel (a megakernel)."""
