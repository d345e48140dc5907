"""Devices, pools and engines of the installation, and the agents and load that they serve."""
