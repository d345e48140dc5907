"""How the driver's hints reach open pages: Channels topics of Django's runs. The one module here that knows Django."""

from django.db import close_old_connections

from flexmarl.controlplane.common import live
from flexmarl.controlplane.runs.models import Run


class Pages:
    """Tells topics, remembering which run number is which page topic."""

    def __init__(self) -> None:
        self._topics: dict[int, str] = {}

    def announce(self, run_id: int, seq: int, moved: bool) -> None:
        """Hint a run's pages, and the lists when its status is another."""
        topic = self._topics.get(run_id) or self._find(run_id)
        if topic:
            live.announce(topic, seq)
        if moved:
            live.announce(live.CLUSTER, seq)

    def _find(self, run_id: int) -> str:
        close_old_connections()
        identity = Run.objects.filter(no=run_id).values_list("id", flat=True).first()
        if identity is None:
            return ""
        self._topics[run_id] = live.run_topic(identity)
        return self._topics[run_id]
