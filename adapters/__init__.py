"""The outside: PostgreSQL, Gitea, Codex, MCP, git, boxes, and simulated stand-ins of them."""
