"""The cluster as last listed and watched: reflectors, stores, and the small records that they keep."""
