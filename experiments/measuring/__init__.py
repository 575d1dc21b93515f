"""How experiments measure: who is timed, on what, by which clock, and the rows they leave."""
