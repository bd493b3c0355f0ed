"""`gpu-dev avail`: free GPUs, and the plan for the next hours."""
