"""`gpu-dev disk`."""
