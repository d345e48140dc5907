"""Checks of a run's consistency: requested and read here, carried out by a thread of its own."""
