"""The real device worker with fake children."""

from workers import hosting, run

for use in hosting.MODULES:
    hosting.MODULES[use] = "fakechild"
run.main()
