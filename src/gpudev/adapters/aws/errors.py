"""AWS's errors in our words: who may not, what is not there, and what is only not to be had at the moment."""

from collections.abc import Mapping
from typing import Any

from gpudev.adapters.aws.permissions import Action
from gpudev.domain.errors import ClusterError, GpuDevError, Unavailable

_NOT_ALLOWED = frozenset(
    {
        "UnauthorizedOperation",
        "AccessDenied",
        "AccessDeniedException",
        "AuthFailure",
        "InvalidClientTokenId",
        "MissingAuthenticationToken",
        "OptInRequired",
        "SignatureDoesNotMatch",
        "UnrecognizedClientException",
    }
)
_NOT_NOW = frozenset(
    {
        "BandwidthLimitExceeded",
        "ConcurrentSnapshotLimitExceeded",
        "EC2ThrottledException",
        "ExpiredToken",
        "ExpiredTokenException",
        "InsufficientVolumeCapacity",
        "PriorRequestNotComplete",
        "RequestExpired",
        "RequestLimitExceeded",
        "RequestThrottled",
        "RequestThrottledException",
        "RequestTimeout",
        "SlowDown",
        "SnapshotCreationPerVolumeRateExceeded",
        "Throttling",
        "ThrottledException",
        "ThrottlingException",
        "TooManyRequestsException",
    }
)
THROTTLED = _NOT_NOW - {"ExpiredToken", "ExpiredTokenException", "RequestExpired", "InsufficientVolumeCapacity"}
"""Definitely not carried out."""
_LONGEST_MESSAGE = 400


class Refusal(ClusterError):
    """AWS answered, and it said no."""

    def __init__(self, action: Action, code: str, message: str) -> None:
        super().__init__(message)
        self.action = action
        self.aws_code = code

    @property
    def is_not_found(self) -> bool:
        """The thing itself is not there, or nothing could be called so. (A filter or a token may be malformed too.)"""
        return self.aws_code in _NO_SUCH_THING

    @property
    def is_not_allowed(self) -> bool:
        return self.aws_code in _NOT_ALLOWED


_NO_SUCH_THING = frozenset(
    {
        "InvalidVolume.NotFound",
        "InvalidVolumeID.Malformed",
        "InvalidSnapshot.NotFound",
        "InvalidSnapshotID.Malformed",
    }
)


class NotNow(Unavailable):
    """AWS answered that it cannot at the moment: nothing was done."""


def error_from_answer(action: Action, answer: Mapping[str, Any]) -> GpuDevError:
    """Of an answer that tells an error."""
    code = str(answer.get("Error", {}).get("Code", ""))
    said = str(answer.get("Error", {}).get("Message", ""))[:_LONGEST_MESSAGE]
    status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if code in _NOT_ALLOWED:
        return Refusal(action, code, f"AWS does not allow us {action}: {said} ({code})")
    if code in THROTTLED:
        return NotNow(f"AWS turns {action} away for too many requests: {said} ({code})")
    if code in _NOT_NOW or status >= 500:
        return Unavailable(f"AWS cannot answer {action} now: {said} ({code})")
    return Refusal(action, code, f"AWS refuses {action}: {said} ({code})")
