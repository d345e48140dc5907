"""What devices did in a window, why they were idle, and device time held."""
