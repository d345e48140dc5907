"""The exchange: a service of its own through which installations hand each other rollouts in words (SAPO)."""
