"""Kubernetes objects of dev servers as values: labels, manifests, resources. Pure."""
