"""Trainer devices of a run: which policy is bound where, and who has a device that engines and trainers share.

Invariants: a policy is in one place: on its gang, on its way there, or in the state plane; decisions are made on values
(`types`) and carried out by `binding` and `shared_devices`.
"""
