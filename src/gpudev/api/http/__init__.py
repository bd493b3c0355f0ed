"""HTTP mechanics of the API: connection limits, middleware, routing, parameters, responses, event streams, OpenAPI."""
