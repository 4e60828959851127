"""What a failure of an execution means: whether it is retried (once) and how people are told (seed §8)."""

RETRIED: frozenset[str] = frozenset(
    (
        "interrupted_by_restart",
        "drained",
        "lease_lost",
        "git_timeout",
        "git_auth_failed",
        "git_failed",
        "disk_full",
        "box_failed",
        "workspace_locked",
        "bridge_failed",
        "app_server_timeout",
        "agent_exited",
        "codex_overloaded",
        "thread_busy",
        "thread_failed",
        "turn_stalled",
        "turn_deadline",
        "turn_interrupted",
        "turn_failed",
        "model_unavailable",
        "model_stream_cut",
        "model_rate_limited",
        "model_incomplete",
        "codex_turn_failed",
        "unexpected_error",
    )
)
"""All others fail at once: a wrong token, a broken gitea-mcp, a model that refuses (400, 401, quota, context)."""

AWAY: frozenset[str] = frozenset(("gitea_unavailable", "git_unreachable"))
"""Gitea itself does not answer: waiting for it costs no attempt (gitea-workflow, Gitea away)."""

MAX_EXECUTION_RETRIES = 1
MAX_REPLY_RETRIES = 1


def retried(error_code: str) -> bool:
    """Whether an execution that failed with this code may use the task's one execution retry."""
    return error_code in RETRIED
