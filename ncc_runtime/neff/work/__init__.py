"""What instructions do: the work of each engine and of DMA, read off a program."""
