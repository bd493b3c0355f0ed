"""Nodes, cordons, GPU types and their availability, as rows."""
