"""Reads the settings and says what is wrong with them: `python -m flexmarl.controlplane.settings.check`.

`manage.py up` runs it before it starts anything.
"""

import importlib

from django.core.exceptions import ImproperlyConfigured

from flexmarl.controlplane.settings import env
from flexmarl.host.exits import leave, refuse

NAME = "DJANGO_SETTINGS_MODULE"
LEGAL = "flexmarl.controlplane.settings.development or flexmarl.controlplane.settings.production"


def main() -> None:
    """End with 0 when the settings can be read."""
    module = env.text(NAME)
    try:
        importlib.import_module(module)
    except ImproperlyConfigured as error:
        refuse(str(error))
    except (ImportError, ValueError) as error:
        refuse(f"{NAME}={module!r} cannot be imported ({error}); use {LEGAL}")


if __name__ == "__main__":
    main()
    leave()
