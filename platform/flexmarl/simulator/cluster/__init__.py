"""The virtual cluster around the real core: driver, hosts, pool and faults.

Invariant: the core is asked by facts and answers by commands, as in a real run; nobody here decides in its place.
Imports `scenarios`, `devices` and `rollout`.
"""
