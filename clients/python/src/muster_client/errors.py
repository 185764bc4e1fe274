"""Errors between a user's program and a facilitator, each with its remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .models import JobView


class MusterError(Exception):
    """Every error of this package."""


class Unreachable(MusterError):
    """The facilitator does not answer. It may answer in a moment."""


class Refused(MusterError):
    """The facilitator refused a request."""

    def __init__(self, status: int, reason: str) -> None:
        """Keeps the HTTP status of the answer, and its reason as text."""
        super().__init__(status, reason)
        self.status = status
        self.reason = reason

    def __str__(self) -> str:
        """The error for people."""
        return f"the facilitator refused ({self.status}): {self.reason}"


class Unwell(Refused):
    """The facilitator is busy or broken (429 or 5xx). The same request may succeed in a moment."""


class Unauthorised(Refused):
    """The facilitator does not take the API key."""


class NotFound(Refused):
    """The account has no such job, file or key."""


class Unreadable(MusterError):
    """An answer is not what a facilitator answers."""


class NoValidator(MusterError):
    """No validator of the facilitator takes the job."""


class JobFailed(MusterError):
    """A job ended without success. `job` is the job as it ended."""

    def __init__(self, job: JobView) -> None:
        """Keeps the ended job."""
        super().__init__(job)
        self.job = job

    def __str__(self) -> str:
        """The error for people."""
        return f"job {self.job.uuid} failed: {self.job.failure}"


class TooLate(MusterError):
    """A job did not end in time. It runs on."""


class Damaged(MusterError):
    """Bytes that came, or that were sent, do not have the digest that they should have."""


class NotProven(MusterError):
    """A streamed answer is not the one that the session and its miner signed."""


class InvalidMessage(MusterError):
    """A webhook's message was not signed with the account's secret, or is old."""
