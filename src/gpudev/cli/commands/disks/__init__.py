"""`gpu-dev disk` and what it shows."""
