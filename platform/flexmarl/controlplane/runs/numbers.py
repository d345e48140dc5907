"""The number that a new run gets in the data plane. It says where its rows will lie (`flexmarl.store.partitions`)."""

from django.db import connection

from flexmarl.contracts.arithmetic import arithmetic
from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.controlplane.runs.models.run import NUMBER_SEQUENCE
from flexmarl.store.partitions import LARGE_SAMPLES, is_reserved


def next_number(spec: ExperimentSpec) -> int:
    """Return the next free number: a reserved one for a run that may come to many samples, else one that is not."""
    large = arithmetic(spec).total_samples[1] > LARGE_SAMPLES
    with connection.cursor() as cursor:
        while True:
            cursor.execute("SELECT nextval(%s)", [NUMBER_SEQUENCE])
            number = int(cursor.fetchone()[0])
            if is_reserved(number) == large:
                return number
