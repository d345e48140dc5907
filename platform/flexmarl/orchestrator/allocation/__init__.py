"""Trainer devices of a run: which policy is bound where, and who has a device that engines and trainers share.

Invariants: a device trains at most one policy at a time; decisions are made on values (`types`) and carried out by
`binding` and `shared_devices`.
"""
