"""How a job went, read from its history."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

from .errors import MusterError

if TYPE_CHECKING:
    from .models import StatusEntry

_ENDS = {"completed", "rejected", "failed", "horde_failed"}


class JobResult:
    """The part of a job that follows from its other fields."""

    if TYPE_CHECKING:
        status_history: list[StatusEntry]
        artifacts: dict[str, str]

    @property
    def last_status(self) -> str:
        """The newest status of the history: `completed`, `failed`, `horde_failed` or `rejected` at the end."""
        return self.status_history[-1].status if self.status_history else "sent"

    @property
    def has_ended(self) -> bool:
        """Whether no other status follows."""
        return self.last_status in _ENDS

    @property
    def succeeded(self) -> bool:
        """Whether the program ran to its end with exit code 0, and its results were delivered."""
        return self.last_status == "completed"

    @property
    def exit_code(self) -> int | None:
        """The exit code of the program; `None` if it did not end by itself."""
        if self.succeeded:
            return 0
        metadata = self.status_history[-1].metadata if self.status_history else None
        failed = metadata.job_failure_details if metadata else None
        return failed.docker_process_exit_status if failed else None

    @property
    def failure(self) -> str | None:
        """Why the job failed, as text; `None` for one that did not."""
        if not self.has_ended or self.succeeded:
            return None
        metadata = self.status_history[-1].metadata
        details = metadata and (
            metadata.job_failure_details or metadata.horde_failure_details or metadata.job_rejection_details
        )
        return details.message or details.reason if details else self.last_status

    def artifact(self, path: str) -> bytes:
        """The contents of a small output file, by its path in the container: `/artifacts/scores.json`."""
        if path not in self.artifacts:
            there = ", ".join(self.artifacts) or "none"
            raise MusterError(f"the job left no artifact {path}; its artifacts: {there}")
        return base64.b64decode(self.artifacts[path])
