"""What leans on CUDA and on Numba's internals, and knows no capsule."""
