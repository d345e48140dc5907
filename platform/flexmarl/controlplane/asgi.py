"""ASGI entry point: probes and the door of nodes first, HTTP to Django, `/ws/` to Channels. Run with `manage.py serve`.

Under another server, forwarded headers must reach this application as they came (`uvicorn --lifespan off
--no-proxy-headers`): whom to believe is decided here.
"""

import os

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "flexmarl.controlplane.settings.production")
django.setup(set_prefix=False)  # what follows imports models

from channels.routing import ProtocolTypeRouter, URLRouter  # noqa: E402
from django.conf import settings  # noqa: E402

from flexmarl.controlplane.accounts.sockets import TicketOrSession  # noqa: E402
from flexmarl.controlplane.common.admission import AdmittingHandler  # noqa: E402
from flexmarl.controlplane.common.database import Purpose, purpose_of_process  # noqa: E402
from flexmarl.controlplane.common.disconnects import CancelOnDisconnect  # noqa: E402
from flexmarl.controlplane.common.proxies import TrustedProxies  # noqa: E402
from flexmarl.controlplane.inventory.door_server import DoorServer  # noqa: E402
from flexmarl.controlplane.routing import websocket_urlpatterns  # noqa: E402
from flexmarl.controlplane.telemetry.health.probes import Probes  # noqa: E402

purpose_of_process(Purpose.LIVE)
application = TrustedProxies(
    ProtocolTypeRouter(
        {
            "http": Probes(DoorServer(CancelOnDisconnect(AdmittingHandler()))),
            "websocket": TicketOrSession(URLRouter(websocket_urlpatterns)),
        }
    ),
    settings.TRUSTED_PROXIES,
)
