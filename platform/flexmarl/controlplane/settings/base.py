"""Settings shared by every way to run the control plane.

Connections come from one psycopg pool per process and are never kept between requests (`CONN_MAX_AGE` 0): persistent
connections under ASGI exhaust the server.
"""

from pathlib import Path
from typing import Any

from csp.constants import NONCE, NONE, SELF

from flexmarl.contracts.events import Verb
from flexmarl.contracts.status import RunStatus
from flexmarl.contracts.wire import EpisodeStatus
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.settings import env

ROOT = Path(__file__).resolve().parents[4]
"""The checkout: the folder of `manage.py`."""
HOME = env.folder("FLEXMARL_HOME", ROOT / ".flexmarl")
"""Data folder of this installation."""
PAYLOADS = HOME / "payloads"
"""Segment files of large payloads, written by this machine's rollout workers."""
KEEP_SAMPLES_DAYS = env.integer("FLEXMARL_KEEP_SAMPLES_DAYS", 0)
"""Days after a run's end at which its samples are retired; 0 keeps them for ever."""

DEBUG = False
SECRET_KEY = env.text("FLEXMARL_SECRET_KEY")
TOKEN_PEPPER = env.text("FLEXMARL_TOKEN_PEPPER")
"""Keyed into the hash of API tokens; the secret key when empty."""
ALLOWED_HOSTS = env.words("FLEXMARL_ALLOWED_HOSTS", ("localhost", "127.0.0.1", "[::1]"))
CSRF_TRUSTED_ORIGINS = env.words("FLEXMARL_TRUSTED_ORIGINS")
CLUSTER_KEY = env.text("FLEXMARL_CLUSTER_KEY")
"""Bearer key of node command endpoints."""
BROKER_URL = env.text("REDIS_URL")
VLLM_PYTHON = env.text("FLEXMARL_VLLM_PYTHON")
"""Interpreter that device workers of this machine run vLLM engines with; the doctor looks at it."""
PLACE = env.text("FLEXMARL_PLACE")
"""Name of the machine's one driver: a new one takes over from the one before at once. Empty: leases have to expire."""
DEFAULT_PROJECT = "default"

APPS = ("common", "accounts", "inventory", "agents", "experiments", "runs", "telemetry", "simulations", "playground")
INSTALLED_APPS = [
    "whitenoise.runserver_nostatic",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "channels",
    "csp",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    *(f"flexmarl.controlplane.{app}" for app in APPS),
    "webui",
]
MIGRATION_MODULES = {app: f"migrations.{app}" for app in APPS if app not in {"telemetry", "playground"}}

MIDDLEWARE = [
    "flexmarl.controlplane.common.middleware.request_id",
    "flexmarl.controlplane.common.admission.in_line",
    "flexmarl.controlplane.common.compression.compressed",
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "csp.middleware.CSPMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
ROOT_URLCONF = "flexmarl.controlplane.urls"
ASGI_APPLICATION = "flexmarl.controlplane.asgi.application"
TEMPLATES: list[dict[str, Any]] = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "csp.context_processors.nonce",
            ],
        },
    },
]

DATABASES = {"default": env.database("DATABASE_URL", "postgresql://localhost/flexmarl")}
DATABASES["default"]["CONN_MAX_AGE"] = 0
# A connection of the pool is tried before use: after a restart of the server all of them are dead.
DATABASES["default"]["CONN_HEALTH_CHECKS"] = True
DATABASES["default"]["OPTIONS"]["pool"] = {
    "min_size": 1,
    "max_size": env.integer("FLEXMARL_DATABASE_CONNECTIONS", 16, minimum=2),
    "timeout": 10,
}
DATABASES["default"]["OPTIONS"].setdefault("application_name", "flexmarl.controlplane")
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

CHANNEL_LAYERS: dict[str, dict[str, Any]] = {
    "default": {
        "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
        "CONFIG": {"hosts": [BROKER_URL], "prefix": "flexmarl"},
    }
    if BROKER_URL
    else {"BACKEND": "channels.layers.InMemoryChannelLayer"},
}
CACHES: dict[str, dict[str, Any]] = {
    "default": {
        "BACKEND": "django.core.cache.backends.redis.RedisCache",
        "LOCATION": BROKER_URL,
        "KEY_PREFIX": "flexmarl",
    }
    if BROKER_URL
    else {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
}

AUTH_USER_MODEL = "accounts.User"
AUTHENTICATION_BACKENDS = ["flexmarl.controlplane.accounts.backend.BrakedBackend"]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 10}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
LOGIN_URL = "/sign-in"
LOGIN_REDIRECT_URL = "/"
SESSION_COOKIE_NAME = "flexmarl_session"
SESSION_COOKIE_SAMESITE = "Lax"
CSRF_COOKIE_NAME = "flexmarl_csrf"

LANGUAGE_CODE = "en"
TIME_ZONE = "UTC"
USE_I18N = False
USE_TZ = True
APPEND_SLASH = False

STATIC_URL = "/static/"
WHITENOISE_USE_FINDERS = True
"""Serve static files from the apps themselves, so that no collection step is needed."""
WHITENOISE_AUTOREFRESH = False

SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": [SELF],
        "script-src": [SELF, NONCE],
        "style-src": [SELF],
        "img-src": [SELF, "data:", "blob:"],
        "font-src": [SELF, "data:"],
        "connect-src": [SELF],
        "object-src": [NONE],
        "base-uri": [SELF],
        "form-action": [SELF],
        "frame-ancestors": [NONE],
    },
}

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "flexmarl.controlplane.accounts.authentication.BearerAuthentication",
        "flexmarl.controlplane.accounts.authentication.BrowserSessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["flexmarl.controlplane.common.api.permissions.Declared"],
    "DEFAULT_THROTTLE_CLASSES": ["flexmarl.controlplane.common.api.throttling.CallerRate"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_CONTENT_NEGOTIATION_CLASS": "flexmarl.controlplane.common.api.negotiation.AlwaysJson",
    "URL_FORMAT_OVERRIDE": None,
    "DEFAULT_PARSER_CLASSES": ["flexmarl.controlplane.common.api.parsers.SafeJsonParser"],
    "DEFAULT_SCHEMA_CLASS": "flexmarl.controlplane.common.api.schema.OperationSchema",
    "EXCEPTION_HANDLER": "flexmarl.controlplane.common.api.exceptions.problem_response",
    "UNAUTHENTICATED_USER": "django.contrib.auth.models.AnonymousUser",
    "TEST_REQUEST_DEFAULT_FORMAT": "json",
}
API_RATES = {
    "ordinary": env.integer("FLEXMARL_API_REQUESTS_PER_MINUTE", 600, minimum=1),
    "ingest": env.integer("FLEXMARL_API_INGEST_PER_MINUTE", 6000, minimum=1),
    "models": env.integer("FLEXMARL_API_MODELS_PER_MINUTE", 120, minimum=1),
    "anonymous": env.integer("FLEXMARL_API_ANONYMOUS_PER_MINUTE", 120, minimum=1),
    "secret": env.integer("FLEXMARL_API_SECRET_PER_MINUTE", 10, minimum=1),
}
"""Requests per minute that one token, session or (anonymous) address may send to the API, by class: ordinary ones,
batches of figures, talks with agents, those of nobody, and those that check a password."""

SPECTACULAR_SETTINGS = {
    "TITLE": "FlexMARL",
    "DESCRIPTION": "Create, watch and steer runs that train teams of LLM agents.",
    "VERSION": "1",
    "OAS_VERSION": "3.1.0",
    "SERVE_INCLUDE_SCHEMA": False,
    "SERVE_PUBLIC": True,
    "SCHEMA_PATH_PREFIX": "/api/v1",
    "COMPONENT_SPLIT_REQUEST": True,
    "ENUM_NAME_OVERRIDES": {
        "RunStatus": [(status.value, status.value) for status in RunStatus],
        "RunVerb": [(verb.value, verb.value) for verb in Verb],
        "EpisodeStatus": [(status.value, status.value) for status in EpisodeStatus],
        "MicroBatchState": [(state, state) for state in ("waiting", "accumulating", "stepping", "published")],
        "DeviceState": [(state, state) for state in ("ready", "cordoned", "draining", "drained", "lost")],
        "Role": "flexmarl.controlplane.accounts.choices.Role",
        "ProjectRole": "flexmarl.controlplane.accounts.choices.ProjectRole",
        "Scope": [(scope.value, scope.value) for scope in Scope],
        "SimulationState": [(state, state) for state in ("queued", "running", "done", "failed", "cancelled")],
        "SimulationKind": [(kind, kind) for kind in ("comparison", "what_if")],
        "LeaseState": [(state, state) for state in ("held", "releasing")],
    },
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "REDOC_DIST": "SIDECAR",
}

LOGGING_CONFIG = "flexmarl.controlplane.common.logs.configure"
LOGGING: dict[str, Any] = {
    "level": env.text("FLEXMARL_LOG_LEVEL", "INFO").upper(),
    "json": env.flag("FLEXMARL_LOG_JSON"),
}
