"""`./scripts/gpu-check`: every test and benchmark of GPUs in one go, and one report."""
