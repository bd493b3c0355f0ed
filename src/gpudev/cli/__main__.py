"""`python -m gpudev.cli`."""

from gpudev.cli.main import main

main()
