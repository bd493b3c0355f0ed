"""A network of its own for each dev server: a network namespace behind NAT."""
