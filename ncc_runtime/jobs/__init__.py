"""Jobs: programs run for many steps, with checkpoints, faults and what is lost to them."""
