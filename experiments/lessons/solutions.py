"""A solution of each exercise. Try first; ``check`` has hints."""
