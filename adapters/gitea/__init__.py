"""Gitea: webhooks, REST and the official gitea-mcp."""
