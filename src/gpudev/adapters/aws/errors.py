"""AWS's errors in our words: who may not, what is not there, and what is only not to be had at the moment."""

from collections.abc import Mapping
from typing import Any

from gpudev.adapters.aws.permissions import Action
from gpudev.domain.errors import ClusterError, GpuDevError, Unavailable

_DENIED_CODES = frozenset(
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
_RETRYABLE_CODES = frozenset(
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
THROTTLED_CODES = _RETRYABLE_CODES - {
    "ExpiredToken",
    "ExpiredTokenException",
    "RequestExpired",
    "InsufficientVolumeCapacity",
}
"""Definitely not carried out."""
_MAX_MESSAGE = 400


class AwsRejected(ClusterError):
    """AWS answered, and it said no."""

    def __init__(self, action: Action, code: str, message: str) -> None:
        super().__init__(message)
        self.action = action
        self.aws_code = code

    @property
    def is_not_found(self) -> bool:
        """The thing itself is not there, or nothing could be called so. (A filter or a token may be malformed too.)"""
        return self.aws_code in _NOT_FOUND_CODES

    @property
    def is_denied(self) -> bool:
        return self.aws_code in _DENIED_CODES


_NOT_FOUND_CODES = frozenset(
    {
        "InvalidVolume.NotFound",
        "InvalidVolumeID.Malformed",
        "InvalidSnapshot.NotFound",
        "InvalidSnapshotID.Malformed",
    }
)


class AwsThrottled(Unavailable):
    """AWS answered that it cannot at the moment: nothing was done."""


def error_from_response(action: Action, answer: Mapping[str, Any]) -> GpuDevError:
    """Of an answer that tells an error."""
    code = str(answer.get("Error", {}).get("Code", ""))
    said = str(answer.get("Error", {}).get("Message", ""))[:_MAX_MESSAGE]
    status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if code in _DENIED_CODES:
        return AwsRejected(action, code, f"AWS does not allow us {action}: {said} ({code})")
    if code in THROTTLED_CODES:
        return AwsThrottled(f"AWS turns {action} away for too many requests: {said} ({code})")
    if code in _RETRYABLE_CODES or status >= 500:
        return Unavailable(f"AWS cannot answer {action} now: {said} ({code})")
    return AwsRejected(action, code, f"AWS refuses {action}: {said} ({code})")
