"""Cache of the cluster, kept current by list and watch: reflectors, stores and records."""
