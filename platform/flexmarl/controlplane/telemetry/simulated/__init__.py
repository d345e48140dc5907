"""Simulated runs in the form in which pages draw real ones."""
