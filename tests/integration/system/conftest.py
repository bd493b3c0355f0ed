from support.fixtures.machine import machine

__all__ = ["machine"]
