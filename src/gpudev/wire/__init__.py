"""What travels over HTTP, shared by the API, the CLI and the SDK.

Standard-library dataclasses, so that a client need not load a validation library: the API validates them with
pydantic (which reads the constraints in each field's metadata), a client reads them with `wire.codec`.
Field names are the specification's and stable.
"""
