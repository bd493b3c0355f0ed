"""The client: what the command line is written on, and what `from gpudev import GpuDev` gives to programs.

A layer of its own below the command line. It loads nothing but the standard library, prints nothing and asks nobody.
"""
