"""`gpu-dev-server`: the operators' commands, one module per subject."""
