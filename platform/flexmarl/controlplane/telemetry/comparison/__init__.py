"""Runs beside each other: what differs in them, their series, and whether the difference is more than chance."""
