"""Comments as seed §4.5 keeps them: folded from intents, results and confirmations, not a stream of their own."""

RECEIPT_TEXTS: dict[str, dict[str, str]] = {
    "en": {
        "queued": "giteabot: received",
        "failed": "giteabot: failed ({code})",
        "failed_reply": "giteabot: the work ended, but its answer could not be confirmed ({code})",
        "aborted": "giteabot: aborted",
        "cancelled": "giteabot: cancelled",
    },
    "zh": {
        "queued": "giteabot: 已收到",
        "failed": "giteabot: 失败（{code}）",
        "failed_reply": "giteabot: 任务已结束，但未能确认回复（{code}）",
        "aborted": "giteabot: 已中止",
        "cancelled": "giteabot: 已取消",
    },
}
"""Receipts by locale and status (seed §5.2.5, §8): once when queued, once for each abnormal end, nothing else."""

RECEIPTED: frozenset[str] = frozenset(("failed", "failed_reply", "aborted"))
"""Abnormal ends that are told to people."""


def receipt_key(task_id: str, status: str) -> str:
    """The idempotency key of a receipt (seed §4.5)."""
    return f"{task_id}:status:{status}"


def final_key(task_id: str, turn_id: str) -> str:
    """The key of a final comment: task and turn (seed §4.5)."""
    return f"{task_id}:final:{turn_id}"


def receipt_text(status: str, *, locale: str, code: str | None) -> str:
    """The visible line of a receipt."""
    texts = RECEIPT_TEXTS.get(locale, RECEIPT_TEXTS["en"])
    return texts[status].format(code=code or "-")


def question_key(task_id: str, turn_id: str) -> str:
    """The idempotency key of a question: one for each turn that asked."""
    return f"{task_id}:question:{turn_id}"
