"""One machine, evaluation and development: everything of `base`, and a secret key of its own when none is given."""

from django.core.management.utils import get_random_secret_key

from flexmarl.controlplane.settings import env
from flexmarl.controlplane.settings.base import *  # noqa: F403
from flexmarl.controlplane.settings.base import ALLOWED_HOSTS, SECRET_KEY

DEBUG = env.flag("FLEXMARL_DEBUG")
# A key of this process alone: sessions end with it. Give FLEXMARL_SECRET_KEY to keep them.
SECRET_KEY = SECRET_KEY or get_random_secret_key()
ALLOWED_HOSTS = [*ALLOWED_HOSTS, "testserver"]
