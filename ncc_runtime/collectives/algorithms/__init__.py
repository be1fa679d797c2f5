"""The algorithms, one file each: pure functions from sizes and groups to transfer plans."""
