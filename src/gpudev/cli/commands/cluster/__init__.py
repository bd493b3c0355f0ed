"""`gpu-dev avail`: free GPUs, and the plan of the coming hours."""
