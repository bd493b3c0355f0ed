"""Endpoints for logins and API keys, as data."""

from gpudev.sdk.http.endpoints import ApiCall, read_call
from gpudev.wire import codec
from gpudev.wire.access import (
    AwsLoginRequest,
    InvitationLoginRequest,
    KeyView,
    LoginMethods,
    LoginView,
    NonceView,
    OidcLoginRequest,
)


def list_login_methods() -> ApiCall[LoginMethods]:
    return read_call(LoginMethods, "/v1/auth/methods")


def create_nonce() -> ApiCall[NonceView]:
    return ApiCall(NonceView, "POST", "/v1/auth/nonce", repeatable=True)


def log_in_with_aws(request: AwsLoginRequest) -> ApiCall[LoginView]:
    return ApiCall(LoginView, "POST", "/v1/auth/aws-login", codec.encode_model(request))


def log_in_with_oidc(request: OidcLoginRequest) -> ApiCall[LoginView]:
    return ApiCall(LoginView, "POST", "/v1/auth/oidc-login", codec.encode_model(request, without_none=True))


def log_in_with_invitation(request: InvitationLoginRequest) -> ApiCall[LoginView]:
    return ApiCall(LoginView, "POST", "/v1/auth/invitation-login", codec.encode_model(request))


def rotate_key() -> ApiCall[KeyView]:
    return ApiCall(KeyView, "POST", "/v1/keys/rotate")
