"""The toolkit's version, where the package's metadata can read it without importing numba."""

VERSION = "0.1.0"
