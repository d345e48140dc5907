"""What runs and processes tell about themselves: series, log lines, busy intervals of devices, reports of load.

Invariants: nothing here is read by a decision; storing a batch twice changes nothing; thinned points keep their
extremes.
"""
