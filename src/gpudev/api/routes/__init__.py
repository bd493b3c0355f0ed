"""The API's endpoints, one module per subject; each calls one workflow and returns its result."""
