"""HTTP surfaces: the ingress, the query routes."""
