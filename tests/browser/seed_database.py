"""Seeds the database that DATABASE_URL names, for two new people, and prints the keys of the runs as JSON."""

import json
import os
import sys

import django

if __name__ == "__main__":
    django.setup()
    from tests.browser.seed import seed
    from tests.support.controlplane import make_person

    people = (make_person("ada", "cluster_admin"), make_person("newcomer", "editor"))
    for person in people:
        person.set_password(os.environ["SEED_PASSWORD"])
        person.save()
    sys.stdout.write(json.dumps([run.key for run in seed(people[0])]) + "\n")
