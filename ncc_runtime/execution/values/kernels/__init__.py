"""What compute instructions do to arrays, all ranks of a batch at once; by kind of opcode."""
