"""What the devices would hold after a run."""
