"""Kubernetes objects as values: labels, manifests of everything a dev server is made of, and compute resources. Pure."""
