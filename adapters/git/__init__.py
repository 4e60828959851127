"""Git: the guarded runner, the trusted mirror, the workspace."""
