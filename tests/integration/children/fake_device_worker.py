"""The real device worker with fake children."""

from workers import programs, run

for use in programs.MODULES:
    programs.MODULES[use] = "fakechild"
programs.IMPORTED[:] = ["fakechild"]
run.main()
