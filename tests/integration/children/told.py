"""A child that says what it is, and ends with the status that it is sent; a stubborn one waits for nothing."""

import json
import os
import sys
import threading
import time

print("to the log", file=sys.stderr, flush=True)
said = {
    "argv": sys.argv, "environment": dict(os.environ), "threads": threading.active_count(),
    "session": os.getsid(0), "pid": os.getpid(), "open": sorted(map(int, os.listdir("/proc/self/fd")))[:-1],
    "has torch": "torch" in sys.modules,
}  # fmt: skip
print(json.dumps(said), flush=True)
if "STUBBORN" in os.environ:
    time.sleep(600)
line = sys.stdin.readline()
sys.exit(int(line) if line else 0)
