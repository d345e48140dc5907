"""What is simulated: specification, workload, machines, faults, and what each turn and episode comes to.

`scenario` says all of it; a workload is a file of `workloads`, a recorded run, or what a specification itself states.
Invariant: nothing here depends on when or where a turn is played: it is the turn that is drawn for, or the record's own
(`chance`, `draws`, `recorded`). Imports nothing else of the simulator.
"""
