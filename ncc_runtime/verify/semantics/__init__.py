"""Every byte of every result is what its collective must compute."""
