"""Login with AWS credentials: signs a GetCallerIdentity request, which the server sends to STS.

Only the signed request and the session token leave this machine, never the secret key. The signature covers the server
name that the client connects to (the server's own claim proves nothing) and a nonce, so it is valid for one login here.
"""

from collections.abc import Mapping
from typing import Any

from gpudev.cli import output
from gpudev.cli.exit_codes import CliError, ExitCode, local_error
from gpudev.cli.login_methods import LoginOptions, LoginSession, credential_from
from gpudev.domain.access import login as aws_login
from gpudev.domain.errors import Invalid
from gpudev.sdk.http import access_endpoints
from gpudev.sdk.user_files import Credential
from gpudev.wire.access import AwsLoginRequest, LoginMethod

_INSTALL = "pip install 'gpu-dev[aws-login]'"


def log_in(session: LoginSession, method: LoginMethod, options: LoginOptions) -> Credential:
    if session.address.url.startswith("http:") and not session.address.is_local:
        output.write_note(f"Note: {session.address.url} is not encrypted; your key can be intercepted.")
    return _log_in(session, method, options.profile)


def log_in_again(session: LoginSession, method: LoginMethod, login: Mapping[str, str]) -> Credential:
    return _log_in(session, method, login.get("profile"))


def _log_in(session: LoginSession, method: LoginMethod, profile: str | None) -> Credential:
    name = _check_name(session.address.url, method)
    # Load credentials first: that may take a while, and the nonce expires.
    signer = _Signer(profile, method)
    api = session.anonymous_api()
    nonce = api.fetch(access_endpoints.create_nonce()).value.nonce
    signed = signer.sign(name, nonce)
    view = api.fetch(access_endpoints.log_in_with_aws(signed)).value
    login = {"method": "aws"} | ({"profile": profile} if profile else {})
    return credential_from(view, login)


def _check_name(url: str, method: LoginMethod) -> str:
    name = aws_login.server_name(url)
    if name not in (method.server_names or []):
        names = ", ".join(method.server_names or []) or "nothing"
        raise CliError(
            ExitCode.AUTH,
            f"you connect to this server as {name}, but it accepts logins for {names} only",
            "Use that address (`gpu-dev config set api_url URL`), or ask its operator to add this one",
        )
    return name


class _Signer:
    """Signs with the user's AWS credentials, from the usual AWS sources."""

    def __init__(self, profile: str | None, method: LoginMethod) -> None:
        self._botocore = _load_botocore()
        self._roles = " or ".join(method.roles or []) or "that it names"
        try:
            aws = self._botocore.session.Session(profile=profile)
            found = aws.get_credentials()
            self._credentials = found.get_frozen_credentials() if found else None
            region = aws.get_config_variable("region")
        except self._botocore.exceptions.BotoCoreError as error:
            raise self._failed(error, profile) from error
        if self._credentials is None:
            raise CliError(
                ExitCode.AUTH,
                f"no AWS credentials found; {self._required_role()}",
                "Log in to AWS first (`aws sso login --profile NAME`, then `gpu-dev login --profile NAME`)",
            )
        if not self._credentials.token:
            raise CliError(
                ExitCode.AUTH,
                f"the AWS credentials found do not belong to a role; {self._required_role()}",
                "Choose a profile with this role: `gpu-dev login --profile NAME`",
            )
        self._endpoint = _endpoint(method, region)

    def sign(self, server_name: str, nonce: str) -> AwsLoginRequest:
        headers = {
            "Host": self._endpoint.host,
            "Content-Type": aws_login.STS_CONTENT_TYPE,
            aws_login.SERVER_HEADER: server_name,
            aws_login.NONCE_HEADER: nonce,
        }
        request = self._botocore.awsrequest.AWSRequest(
            aws_login.STS_METHOD, self._endpoint.url, data=aws_login.STS_BODY, headers=headers
        )
        self._botocore.auth.SigV4Auth(self._credentials, "sts", self._endpoint.region).add_auth(request)
        return AwsLoginRequest(
            method=aws_login.STS_METHOD,
            url=self._endpoint.url,
            headers={str(name): str(value) for name, value in request.headers.items()},
            body=aws_login.STS_BODY,
        )

    def _required_role(self) -> str:
        return f"this server requires the role {self._roles}"

    def _failed(self, error: Exception, profile: str | None) -> CliError:
        named = f" --profile {profile}" if profile else ""
        return CliError(
            ExitCode.AUTH, f"cannot load your AWS credentials: {error}", f"With SSO, run `aws sso login{named}`"
        )


def _endpoint(method: LoginMethod, own_region: str | None) -> aws_login.StsEndpoint:
    """In the user's region if the server accepts it, else in the first accepted region."""
    regions = method.regions or []
    try:
        return aws_login.get_sts_endpoint(own_region if own_region in regions else regions[0])
    except (Invalid, IndexError) as error:
        raise CliError(ExitCode.UNREACHABLE, "the server names no AWS region to sign for") from error


def _load_botocore() -> Any:
    try:
        import botocore.auth
        import botocore.awsrequest
        import botocore.exceptions
        import botocore.session
    except ImportError as error:
        raise local_error("AWS login requires botocore", f"Install it: {_INSTALL}") from error
    return botocore
