"""Settings shared by every way to run the control plane.

Connections come from one psycopg pool per process and purpose and are never kept between requests (`CONN_MAX_AGE` 0):
persistent connections under ASGI exhaust the server.
"""

from pathlib import Path
from typing import Any

from csp.constants import NONCE, NONE, SELF

from flexmarl.contracts.events import Verb
from flexmarl.contracts.status import SHOWN_STATUSES, RunReason
from flexmarl.contracts.wire import EpisodeStatus
from flexmarl.controlplane.common import brief_redis
from flexmarl.controlplane.common.database import ConnectionLimits, Purpose
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.settings import env

ROOT = Path(__file__).resolve().parents[4]
"""The checkout: the folder of `manage.py`."""
HOME = env.folder("FLEXMARL_HOME", ROOT / ".flexmarl")
"""Data folder of this installation."""
PAYLOADS = HOME / "payloads"
"""Segment files of large payloads, written by this machine's rollout workers."""
MODEL_ROOTS = env.model_roots("FLEXMARL_MODEL_ROOTS")
"""Folders below which specifications may name models and adapters; none: no folder may be named."""
HUB = env.hub("FLEXMARL_HUB")
"""Address of the hub that nodes import models from; empty: none."""
UPLOADS_GIB = env.integer("FLEXMARL_UPLOADS_GIB", 100)
"""What uploads of a project may take together before they are imported; 0: nobody may upload."""
UPLOADS_HOURS = env.integer("FLEXMARL_UPLOADS_HOURS", 24, minimum=1)
"""Hours after the last piece at which an upload that nobody imported is removed."""
KEEP_SAMPLES_DAYS = env.integer("FLEXMARL_KEEP_SAMPLES_DAYS", 30)
"""Days after a run's end at which its samples and payloads are retired; 0: no limit by age."""
KEEP_SAMPLES_GIB = env.integer("FLEXMARL_KEEP_SAMPLES_GIB", 50)
"""What samples and payloads may take before those of runs that ended first are retired; 0: no limit by size."""
KEEP_LOGS_DAYS = env.integer("FLEXMARL_KEEP_LOGS_DAYS", 90)
"""Days after a run's end at which its log lines are removed; 0: no limit by age."""
KEEP_LOGS_GIB = env.integer("FLEXMARL_KEEP_LOGS_GIB", 5)
"""What log lines may take before those of runs that ended first are removed; 0: no limit by size."""
KEEP_RUNS_DAYS = env.integer("FLEXMARL_KEEP_RUNS_DAYS", 0)
"""Days after its end at which a whole run is deleted; 0, the default: results stay until somebody deletes them."""
KEEP_RUNS_GIB = env.integer("FLEXMARL_KEEP_RUNS_GIB", 0)
"""What episodes, events, series and checkpoints may take before whole ended runs are deleted; 0: no limit by size."""
MOST_DATASET_BYTES = env.integer("FLEXMARL_MOST_DATASET_MIB", 256, minimum=1) * 2**20
"""Largest file of a dataset that may be uploaded."""
MOST_DATASET_ROWS = env.integer("FLEXMARL_MOST_DATASET_ROWS", 1_000_000, minimum=1)
"""Most rows of a dataset."""
MOST_PACKAGE_BYTES = env.integer("FLEXMARL_MOST_PACKAGE_MIB", 64, minimum=1) * 2**20
"""Largest wheel or source distribution that may be uploaded."""

DEBUG = False
SECRET_KEY = env.text("FLEXMARL_SECRET_KEY")
TOKEN_PEPPER = env.text("FLEXMARL_TOKEN_PEPPER")
"""Keyed into the hash of API tokens; the secret key when empty."""
ALLOWED_HOSTS = env.words("FLEXMARL_ALLOWED_HOSTS", ("localhost", "127.0.0.1", "[::1]"))
CSRF_TRUSTED_ORIGINS = env.words("FLEXMARL_TRUSTED_ORIGINS")
TRUSTED_PROXIES = env.networks("FLEXMARL_TRUSTED_PROXIES")
"""Networks of the proxies in front of the web process, whose forwarded headers are believed; nobody's by default."""
CLUSTER_KEY = env.text("FLEXMARL_CLUSTER_KEY")
"""Bearer key of node command endpoints."""
BROKER_URL = env.broker("REDIS_URL")
VLLM_PYTHON = env.text("FLEXMARL_VLLM_PYTHON")
"""Interpreter that device workers of this machine run vLLM engines with; the doctor looks at it."""
RAY_PYTHON = env.text("FLEXMARL_RAY_PYTHON")
"""Interpreter with a Ray cluster's versions of Ray and Python, for pools whose hosts come from one; empty: none do."""
RAY_ENVIRONMENT = env.given((), ("RAY_",))
"""How that interpreter reaches clusters: their token and certificates, as Ray reads them."""
KUBECONFIG = env.text("FLEXMARL_KUBECONFIG")
"""File with the credentials of Kubernetes clusters; empty: those of the pod that this process runs in, if any."""
IN_KUBERNETES = bool(env.text("KUBERNETES_SERVICE_HOST"))
"""This process runs in a pod."""
PLACE = env.text("FLEXMARL_PLACE")
"""Name of the machine's one driver: a new one takes over from the one before at once. Empty: leases have to expire."""
HEARTBEAT_DESCRIPTOR = env.integer("FLEXMARL_HEARTBEAT_FD", -1, minimum=-1)
"""The pipe to the supervisor that started this process; -1 without one."""
NODE = env.text("FLEXMARL_NODE")
"""Name of this machine; its host name when empty."""
HOST_SETTINGS = env.given(
    (
        "FLEXMARL_CHILD_STUCK_S", "FLEXMARL_CHILD_THREADS", "FLEXMARL_CONTAINER_ENGINE",
        "FLEXMARL_CONTAINER_IMAGES", "FLEXMARL_CONTROL_URL", "FLEXMARL_DEVICE_CLASSES",
        "FLEXMARL_EXCHANGE_KEY", "FLEXMARL_EXCHANGE_MEMBER", "FLEXMARL_EXCHANGE_URL",
        "FLEXMARL_EXTERNAL_HOSTS", "FLEXMARL_HUB", "FLEXMARL_MODEL_ROOTS", "FLEXMARL_OBJECT_STORE",
        "FLEXMARL_PAYLOAD_BY_VALUE_BYTES", "FLEXMARL_REWARD_TASKS", "FLEXMARL_ROLLOUT_COMMANDS", "FLEXMARL_VLLM_PYTHON",
    ),
    ("FLEXMARL_EXTERNAL_SECRET_",),
)  # fmt: skip
"""What of this process's settings the hosts of a provider get as well."""
COMMAND_ENVIRONMENT = env.given(("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "SLURM_CONF", "KRB5CCNAME", "TZ"))
"""What the commands of a scheduler get of this process's environment: nothing secret."""
EXCHANGE_PROJECTS = env.words("FLEXMARL_EXCHANGE_PROJECTS")
"""Projects whose runs may exchange rollouts with other installations; none by default."""
DEFAULT_PROJECT = "default"

APPS = (
    "common", "accounts", "inventory", "agents", "registry", "datasets", "packages", "experiments", "runs",
    "telemetry", "sweeps", "simulations", "evaluations", "playground",
)  # fmt: skip
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
MIGRATION_MODULES = {app: f"migrations.{app}" for app in APPS if app != "telemetry"}

MIDDLEWARE = [
    "flexmarl.controlplane.common.middleware.request_id",
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

DATABASE_CONNECTIONS = env.integer("FLEXMARL_DATABASE_CONNECTIONS", 12, minimum=4)
"""Of one process: a web process parts them between pages, the API, and sockets with streams; health has two more. As
many requests work at once, and they share one interpreter: more of them together answer fewer."""
_LIVE = DATABASE_CONNECTIONS // 4
_API = (DATABASE_CONNECTIONS - _LIVE) // 2
DATABASE_LIMITS = {
    Purpose.PAGES: ConnectionLimits(
        DATABASE_CONNECTIONS - _LIVE - _API, 5, env.integer("FLEXMARL_STATEMENT_TIMEOUT_PAGES_S", 10, minimum=1)
    ),
    Purpose.API: ConnectionLimits(_API, 5, env.integer("FLEXMARL_STATEMENT_TIMEOUT_API_S", 20, minimum=1)),
    Purpose.REMOTE: ConnectionLimits(8, 5, env.integer("FLEXMARL_STATEMENT_TIMEOUT_API_S", 20, minimum=1)),
    Purpose.NODES: ConnectionLimits(4, 5, env.integer("FLEXMARL_STATEMENT_TIMEOUT_NODES_S", 60, minimum=1)),
    Purpose.HEALTH: ConnectionLimits(2, 2, env.integer("FLEXMARL_STATEMENT_TIMEOUT_HEALTH_S", 3, minimum=1)),
    Purpose.LIVE: ConnectionLimits(_LIVE, 5, env.integer("FLEXMARL_STATEMENT_TIMEOUT_LIVE_S", 20, minimum=1)),
    Purpose.BACKGROUND: ConnectionLimits(
        DATABASE_CONNECTIONS, 10, env.integer("FLEXMARL_STATEMENT_TIMEOUT_BACKGROUND_S", 300, minimum=1)
    ),
}
"""By what a connection is for: how many, how long to wait for one, how long a statement may take."""
DATABASES = {"default": env.database("DATABASE_URL", "postgresql://localhost/flexmarl")}
DATABASES["default"]["CONN_MAX_AGE"] = 0
DATABASES["default"]["CONN_HEALTH_CHECKS"] = True
DATABASES["default"]["OPTIONS"] |= {"pool": True, "purposes": DATABASE_LIMITS}
DATABASES["default"]["OPTIONS"].setdefault("application_name", "flexmarl.controlplane")
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

CHANNEL_LAYERS: dict[str, dict[str, Any]] = {
    "default": {
        "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
        "CONFIG": {"hosts": [{"address": BROKER_URL, **brief_redis.limits_of_layers()}], "prefix": "flexmarl"},
    }
    if BROKER_URL
    else {"BACKEND": "channels.layers.InMemoryChannelLayer"},
}
CACHES: dict[str, dict[str, Any]] = {
    "default": {
        "BACKEND": "flexmarl.controlplane.common.brief_redis.BriefCache",
        "LOCATION": BROKER_URL,
        "KEY_PREFIX": "flexmarl",
        "OPTIONS": brief_redis.limits(),
    }
    if BROKER_URL
    else {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
    "process": {
        "BACKEND": "django.core.cache.backends.locmem.LocMemCache",
        "LOCATION": "process",
        "OPTIONS": {"MAX_ENTRIES": 100_000},
    },
}

AUTH_USER_MODEL = "accounts.User"
PASSWORD_HASHERS = ["flexmarl.controlplane.accounts.hashing.BoundedPBKDF2"]
AUTHENTICATION_BACKENDS = ["flexmarl.controlplane.accounts.backend.BrakedBackend"]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 10}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
CSRF_FAILURE_VIEW = "webui.views.base.csrf_error"
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
    "sessions": env.integer("FLEXMARL_API_SESSIONS_PER_MINUTE", 12_000, minimum=1),
    "models": env.integer("FLEXMARL_API_MODELS_PER_MINUTE", 120, minimum=1),
    "anonymous": env.integer("FLEXMARL_API_ANONYMOUS_PER_MINUTE", 120, minimum=1),
    "secret": env.integer("FLEXMARL_API_SECRET_PER_MINUTE", 10, minimum=1),
}
"""Requests per minute that one token, session or (anonymous) address may send to the API, by class: ordinary ones,
batches of figures, sessions of agent programs, talks with agents, those of nobody, and those that check a password."""

SPECTACULAR_SETTINGS = {
    "TITLE": "FlexMARL",
    "DESCRIPTION": "Create, watch and steer runs that train teams of LLM agents.",
    "VERSION": "1",
    "OAS_VERSION": "3.1.0",
    "SERVE_INCLUDE_SCHEMA": False,
    "SERVE_PUBLIC": True,
    "SCHEMA_PATH_PREFIX": "/api/v1",
    "COMPONENT_SPLIT_REQUEST": True,
    "POSTPROCESSING_HOOKS": [
        "drf_spectacular.hooks.postprocess_schema_enums",
        "flexmarl.controlplane.common.api.document.complete",
    ],
    "ENUM_NAME_OVERRIDES": {
        "RunStatus": [(status, status) for status in SHOWN_STATUSES],
        "RunVerb": [(verb.value, verb.value) for verb in Verb],
        "OperationAction": [(action, action) for action in (*(verb.value for verb in Verb), "delete")],
        "OperationResultStatus": [(status, status) for status in (*SHOWN_STATUSES, "deleted")],
        "EpisodeStatus": [(status.value, status.value) for status in EpisodeStatus],
        "MicroBatchState": [(state, state) for state in ("waiting", "accumulating", "stepping", "published")],
        "DeviceState": [(state, state) for state in ("ready", "cordoned", "draining", "drained", "lost")],
        "Role": "flexmarl.controlplane.accounts.choices.Role",
        "ProjectRole": "flexmarl.controlplane.accounts.choices.ProjectRole",
        "Scope": [(scope.value, scope.value) for scope in Scope],
        "SimulationState": [(state, state) for state in ("queued", "running", "done", "failed", "cancelled")],
        "SimulationKind": [(kind, kind) for kind in ("comparison", "what_if")],
        "LeaseState": [(state, state) for state in ("held", "releasing")],
        "TokenState": [(state, state) for state in ("active", "expired", "revoked")],
        "HostJobState": [
            (state, state) for state in ("requested", "refused", "pending", "running", "leaving", "ended", "failed")
        ],
        "ServingKeyState": [(state, state) for state in ("active", "revoked")],
        "RunReason": [(reason.value, reason.value) for reason in RunReason if reason.value],
        "ServiceRole": "flexmarl.controlplane.accounts.api.serializers.SERVICE_CHOICES",
        "BulkAction": "flexmarl.controlplane.runs.bulk.ACTIONS",
        "DrainMode": [(mode, mode) for mode in ("wait", "move", "stop")],
        "DrainKind": [(kind, kind) for kind in ("node", "device")],
        "EvaluationState": "flexmarl.controlplane.evaluations.api.serializers.STATES",
        "PackageState": "flexmarl.controlplane.packages.filters.STATES",
        "ProgramSessionState": "flexmarl.controlplane.runs.session_lists.STATES",
        "ProgramSessionPurpose": "flexmarl.controlplane.runs.session_lists.PURPOSES",
        "SweepState": "flexmarl.controlplane.sweeps.api.serializers.SWEEP_STATES",
        "ExperimentVerdict": "flexmarl.controlplane.experiments.api.serializers.VERDICTS",
        "ValueSource": [(source, source) for source in ("user", "template", "preset", "default")],
    },
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "REDOC_DIST": "SIDECAR",
}

LOGGING_CONFIG = "flexmarl.controlplane.common.logs.configure"
LOGGING: dict[str, Any] = {
    "level": env.choice("FLEXMARL_LOG_LEVEL", "INFO", ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")),
    "json": env.flag("FLEXMARL_LOG_JSON"),
}
