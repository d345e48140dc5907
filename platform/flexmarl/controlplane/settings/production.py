"""Behind a TLS proxy, across machines: nothing is guessed, cookies travel over HTTPS only."""

from django.core.exceptions import ImproperlyConfigured

from flexmarl.controlplane.settings import env
from flexmarl.controlplane.settings.base import *  # noqa: F403
from flexmarl.controlplane.settings.base import CLUSTER_KEY, HOME, SECRET_KEY

for _name, _value in (
    ("FLEXMARL_SECRET_KEY", SECRET_KEY),
    ("FLEXMARL_CLUSTER_KEY", CLUSTER_KEY),
    ("DATABASE_URL", env.text("DATABASE_URL")),
    ("REDIS_URL", env.text("REDIS_URL")),
    ("FLEXMARL_ALLOWED_HOSTS", env.text("FLEXMARL_ALLOWED_HOSTS")),
):
    if not _value:
        raise ImproperlyConfigured(f"{_name} must be set in production")

SESSION_COOKIE_SECURE = True
CSRF_COOKIE_SECURE = True
SECURE_HSTS_SECONDS = env.integer("FLEXMARL_HSTS_SECONDS", 3600)
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "whitenoise.storage.CompressedManifestStaticFilesStorage"},
}
STATIC_ROOT = HOME / "static"
WHITENOISE_USE_FINDERS = False
