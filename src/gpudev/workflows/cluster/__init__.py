"""Use cases of nodes and GPU types: status and plan views, drain, eviction, machine refresh, availability."""
