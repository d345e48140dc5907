"""Health of this installation: probes, readiness and gauges."""
