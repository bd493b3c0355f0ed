"""HTTP models, shared by the API, the CLI and the SDK.

Standard-library dataclasses, so that the client needs no validation library: the API validates them with pydantic
(which reads the constraints in each field's metadata), the client reads them with `wire.codec`. Field names are the
specification's and stable.
"""
