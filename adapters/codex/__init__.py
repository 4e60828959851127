"""The Codex app-server: its client and the relay that keeps the model's key outside the box."""
