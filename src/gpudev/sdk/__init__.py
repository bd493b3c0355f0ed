"""The SDK: the Python client, and the base of the command line.

It uses only the standard library, prints nothing and asks no questions.
"""
