"""Proposes other devices to the run that RUN names, in the database that DATABASE_URL names."""

import os

from tests.browser import preloaded

if __name__ == "__main__":
    preloaded.begin()
    from flexmarl.controlplane.runs.models import Run
    from tests.support.replanned import propose

    run, parent = Run.objects.get(key=os.environ["RUN"]), Run.objects.get(key=os.environ["PARENT"])
    Run.objects.filter(pk=run.pk).update(parent=parent)  # nothing is proposed to a run that neither has a plan nor this
    propose(run)
