"""What the control plane and the data plane agree on. Pydantic only: importable anywhere, in milliseconds."""
