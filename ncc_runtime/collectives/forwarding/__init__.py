"""Collectives over irregular wiring: schedules of sends over links, and ranks that forward."""
