"""NVIDIA's DCGM exporters: what they measure of GPUs, by the pod that has them."""
