"""Routes of serving keys, below `/api/v1/`."""

from django.urls import path

from flexmarl.controlplane.playground.api import keys

_KEYS = "projects/<str:name>/serving-keys"

urlpatterns = [
    path(_KEYS, keys.ServingKeysView.as_view(), name="api-serving-keys"),
    path(f"{_KEYS}/<uuid:key_id>", keys.ServingKeyView.as_view(), name="api-serving-key"),
    path(f"{_KEYS}/<uuid:key_id>/days", keys.ServingDaysView.as_view(), name="api-serving-days"),
]
