"""What a plan costs: what its transfers use of the machine, and its price in time."""
