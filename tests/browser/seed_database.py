"""Makes the tables of the database that DATABASE_URL names and seeds them, for two new people; prints JSON.

`keys`: of the runs. `sessions`: the cookie of a session of each person, as one who has signed in has it.
"""

import json
import os
import sys

from tests.browser import preloaded

if __name__ == "__main__":
    preloaded.begin()
    from django.conf import settings
    from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
    from django.contrib.sessions.backends.db import SessionStore
    from django.core.management import call_command

    from tests.browser.seed import seed
    from tests.support.controlplane import make_person

    call_command("migrate", verbosity=0)
    people = (make_person("ada", "cluster_admin"), make_person("newcomer", "editor"))
    sessions = {}
    for person in people:
        person.set_password(os.environ["SEED_PASSWORD"])
        person.save()
        session = SessionStore()
        session[SESSION_KEY] = str(person.pk)
        session[BACKEND_SESSION_KEY] = settings.AUTHENTICATION_BACKENDS[0]
        session[HASH_SESSION_KEY] = person.get_session_auth_hash()
        session.create()
        sessions[person.username] = session.session_key
    keys = [run.key for run in seed(people[0])]
    sys.stdout.write(json.dumps({"keys": keys, "sessions": sessions}) + "\n")
    sys.stdout.flush()
