"""Settings of the control plane: `base` and one module per way to run. The environment is read in `env` alone."""
