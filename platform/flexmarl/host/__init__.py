"""What every process of a machine does with its disk: small files that survive a power loss, output, free space.

Imports the standard library only, so that launcher, store, control plane and workers share it.
"""
