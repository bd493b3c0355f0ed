"""Kubernetes as the cluster: dev servers are pods. cluster.py fulfils the port; the folders are its layers, lowest first: client, objects, cache, observation, provisioning."""
