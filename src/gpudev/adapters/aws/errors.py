"""Mapping of AWS errors: denied, not found, otherwise rejected, throttled, unavailable."""

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
"""The request certainly had no effect."""
_MAX_MESSAGE = 400


class AwsRejected(ClusterError):
    """AWS understood the request and rejected it."""

    def __init__(self, action: Action, code: str, message: str) -> None:
        super().__init__(message)
        self.action = action
        self.aws_code = code

    @property
    def is_not_found(self) -> bool:
        """The resource does not exist, or its id is malformed. (Other codes say that a filter or a token is.)"""
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
    """AWS throttled the request; it had no effect."""


def error_from_response(action: Action, response: Mapping[str, Any]) -> GpuDevError:
    """`response`: an error response."""
    code = str(response.get("Error", {}).get("Code", ""))
    message = str(response.get("Error", {}).get("Message", ""))[:_MAX_MESSAGE]
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if code in _DENIED_CODES:
        return AwsRejected(action, code, f"AWS denies us {action}: {message} ({code})")
    if code in THROTTLED_CODES:
        return AwsThrottled(f"AWS throttles {action}: {message} ({code})")
    if code in _RETRYABLE_CODES or status >= 500:
        return Unavailable(f"AWS cannot answer {action} now: {message} ({code})")
    return AwsRejected(action, code, f"AWS rejects {action}: {message} ({code})")
