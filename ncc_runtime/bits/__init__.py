"""In which order collectives reduce, where two placements differ in it, and what that changes."""
