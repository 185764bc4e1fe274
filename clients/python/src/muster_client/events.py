"""News of a job while it runs."""

from __future__ import annotations

import json

from ._decode import decode
from .errors import Unreadable
from .models import LogEvent, ProgressEvent, QueueEvent, ReportedState, StatusEntry

__all__ = ["Event", "LogEvent", "ProgressEvent", "QueueEvent", "ReportedState", "StatusEntry"]

#: A status, a piece of output, how far a stage is, the place of a job that waits, or what its program reported.
Event = StatusEntry | LogEvent | ProgressEvent | QueueEvent | ReportedState

_KINDS: dict[str, type[Event]] = {
    "status": StatusEntry,
    "log": LogEvent,
    "progress": ProgressEvent,
    "queued": QueueEvent,
    "metrics": ReportedState,
}


def read_event(kind: str, data: str) -> Event | None:
    """Reads an event of the stream; `None` for a kind that a newer facilitator adds."""
    model = _KINDS.get(kind)
    if model is None:
        return None
    try:
        return decode(model, json.loads(data), f"the event {kind}")
    except ValueError as error:
        raise Unreadable(f"the event {kind} is no JSON") from error


class PrintedPart:
    """How much of a stream of output came live, without a gap and without a byte that is no text."""

    def __init__(self) -> None:
        """Begins at the first byte."""
        self.end = 0
        self.is_exact = True

    def take(self, piece: LogEvent) -> bool:
        """Whether a piece follows the last one. One after a gap does not: the rest is read at the job's end."""
        if piece.offset == 0 and self.end > 0:
            # Another attempt of the job begins.
            self.end, self.is_exact = 0, True
        if not self.is_exact or piece.offset != self.end:
            self.is_exact = self.is_exact and piece.offset < self.end
            return False
        if "\ufffd" in piece.text:
            # Nobody knows how many bytes it stands for.
            self.is_exact = False
            return False
        self.end += len(piece.text.encode())
        return True
