"""The GPU's memory, whichever library holds it: given back, or lacking."""

import gc
import sys

from numbacaps.device.target import cuda


def release():
    """Give back all device memory that nothing refers to any more."""
    gc.collect()
    cuda.current_context().deallocations.clear()
    if "torch" in sys.modules:
        sys.modules["torch"].cuda.empty_cache()
    if "cupy" in sys.modules:
        sys.modules["cupy"].get_default_memory_pool().free_all_blocks()


def is_out_of_memory(error):
    """Whether an exception, whichever library's, says that device memory ran out."""
    text = f"{type(error).__name__} {error}".lower().replace("_", "").replace(" ", "")
    words = ("outofmemory", "allocfailed", "unabletofindanengine", "novalidcudnnalgorithm")
    return isinstance(error, MemoryError) or any(word in text for word in words)
