"""Pools that grow and shrink: how many hosts are wanted, and the loop that asks providers for them."""
