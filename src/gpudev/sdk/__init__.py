"""The SDK: the client that programs import and the command line is written on.

A layer of its own below the command line. It loads nothing but the standard library, prints nothing and asks nobody.
"""
