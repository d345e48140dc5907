"""Devices on a virtual clock: engines that answer turns, trainers that carry out commands, and what each device did.

Invariant: a model only takes its time, by the figures of the scenario's machine; it is told what to do, and when.
Imports `scenarios`.
"""
