"""The exercises, a file each, named by the function to write. Here stand the mistakes: whoever reads them reads the solution."""
