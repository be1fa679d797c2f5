"""The contract between compiler and runtime: what a `.neff` holds, checked, listed and stored."""
