"""The disk budget: looked at before anything large is written."""

import shutil
from pathlib import Path

from domain.faults import Unavailable


def need_space(path: Path, reserve: int) -> None:
    """Raise ``Unavailable`` (``disk_full``) where fewer than ``reserve`` bytes are free on the disk of ``path``."""
    free = shutil.disk_usage(path).free
    if free < reserve:
        raise Unavailable(
            "Too little space is left on the disk for repositories; free some, or lower the reserve.",
            code="disk_full",
            params={"free": free, "reserve": reserve},
        )
