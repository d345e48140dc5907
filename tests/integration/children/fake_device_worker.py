"""The real device worker with fake children."""

import sys

from workers import programs, run

for use in programs.MODULES:
    programs.MODULES[use] = "fakechild"
programs.IMPORTED[:] = ["fakechild"]
sys.argv[1:] = ["--role", "device"]
run.main()
