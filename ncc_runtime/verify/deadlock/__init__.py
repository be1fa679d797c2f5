"""Every queue comes to its end, on every order."""
