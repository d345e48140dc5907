"""Keys for programs that ask agents, and what was used with them."""

from flexmarl.controlplane.playground.models.serving import ServingCall, ServingDay, ServingKey

__all__ = ["ServingCall", "ServingDay", "ServingKey"]
