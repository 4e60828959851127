"""``hooks install`` and ``hooks check``."""

import asyncio

from services import hooks
from services.cli_client import service_url
from services.cli_output import emit, line
from services.cli_wiring import wiring
from services.config import Settings
from services.config_values import configuration_invalid
from services.hooks import HookReport


def install(settings: Settings, repository: str, token: str, url: str | None, *, as_json: bool) -> None:
    """Make the hook, or set it right."""
    _need(settings)
    report = asyncio.run(_with_hands(settings, repository, token, url or service_url(settings), change=True))
    _tell(report, as_json=as_json)


def check(settings: Settings, repository: str, token: str, url: str | None, *, as_json: bool) -> bool:
    """Look at the hook; whether it is right."""
    _need(settings)
    report = asyncio.run(_with_hands(settings, repository, token, url or service_url(settings), change=False))
    _tell(report, as_json=as_json)
    return report.outcome == "ok"


def by_hand(settings: Settings, repository: str, ident: int, url: str | None, *, as_json: bool) -> None:
    """Print what an owner enters in Gitea's form. The secret shown is worth this repository only."""
    _need(settings)
    hooks.split_name(repository)
    entries = {
        "url": hooks.hook_url(url or service_url(settings), ident),
        "method": "POST",
        "contentType": "application/json",
        "secret": wiring().derived_secret(settings.webhook_secrets[0], ident),
        "events": list(hooks.EVENTS),
        "active": True,
    }
    if as_json:
        emit(entries)
        return
    line(f"In {repository}: Settings, Webhooks, Add Webhook, Gitea:")
    for name, value in entries.items():
        line(f"  {name:<12} {', '.join(value) if isinstance(value, list) else value}")


async def _with_hands(
    settings: Settings, repository: str, token: str, url: str, *, change: bool
) -> HookReport:
    async with wiring().hook_hands(settings, token) as hands:
        return await (hooks.install if change else hooks.check)(hands, repository, url)


def _need(settings: Settings) -> None:
    if settings.gitea_url is None:
        raise configuration_invalid("gitea_url", "TURNKEEPER_GITEA_URL is missing: the address of your Gitea")
    if not settings.webhook_secrets:
        raise configuration_invalid(
            "webhook_secret", "TURNKEEPER_WEBHOOK_SECRET is missing: the hook's own secret is derived from it"
        )


def _tell(report: HookReport, *, as_json: bool) -> None:
    if as_json:
        emit(report.as_json())
        return
    line(f"{report.outcome}: {report.url} for {report.repository}")
    for finding in report.findings:
        line(f"  {finding}")
