"""Kubernetes objects as values: labels, manifests of a dev server's objects, compute resources. Pure."""
