"""ASGI entry point: HTTP to Django, `/ws/` to Channels. Run with `uvicorn --lifespan off`."""

import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "flexmarl.controlplane.settings.production")
_http = get_asgi_application()  # sets Django up: what follows imports models

from channels.routing import ProtocolTypeRouter, URLRouter  # noqa: E402

from flexmarl.controlplane.accounts.sockets import TicketOrSession  # noqa: E402
from flexmarl.controlplane.routing import websocket_urlpatterns  # noqa: E402

application = ProtocolTypeRouter(
    {
        "http": _http,
        "websocket": TicketOrSession(URLRouter(websocket_urlpatterns)),
    }
)
