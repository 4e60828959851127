"""Faults that tests switch on in the stand-in Gitea: an error status, a delay, an answer that is lost."""

import re
from dataclasses import dataclass


@dataclass(kw_only=True, slots=True)
class GiteaFault:
    """One switched-on fault.

    ``method`` is an HTTP method or ``*``; ``path_pattern`` a regular expression searched in the path (without the
    query); ``times`` how often it still strikes (None: always). Of the three kinds any may be set: ``delay``
    seconds before the request is handled, ``status`` instead of handling it, ``drop_answer_after_handling`` to
    close the connection once it is handled. ``struck`` counts.
    """

    method: str
    path_pattern: str
    status: int | None = None
    message: str = "switched-on fault"
    delay: float = 0.0
    drop_answer_after_handling: bool = False
    times: int | None = 1
    struck: int = 0


class GiteaFaults:
    """The faults that are switched on, asked once per request."""

    def __init__(self) -> None:
        self.all: list[GiteaFault] = []

    def add(
        self,
        method: str,
        path_pattern: str,
        *,
        status: int | None = None,
        delay: float = 0.0,
        drop_answer_after_handling: bool = False,
        times: int | None = 1,
    ) -> GiteaFault:
        """Switch a fault on and return it (see ``GiteaFault``)."""
        fault = GiteaFault(
            method=method.upper(),
            path_pattern=path_pattern,
            status=status,
            delay=delay,
            drop_answer_after_handling=drop_answer_after_handling,
            times=times,
        )
        self.all.append(fault)
        return fault

    def clear(self) -> None:
        """Switch all faults off."""
        self.all.clear()

    def strike(self, method: str, path: str) -> GiteaFault | None:
        """The first fault that applies to this request; uses one of its times up."""
        for fault in self.all:
            if fault.times is not None and fault.struck >= fault.times:
                continue
            if fault.method in ("*", method) and re.search(fault.path_pattern, path):
                fault.struck += 1
                return fault
        return None
