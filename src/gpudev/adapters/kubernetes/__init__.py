"""Kubernetes as the cluster: dev servers are pods.

cluster.py implements the port. The folders are layers, lowest first: client, objects, cache, observation, provisioning.
"""
