"""OIDC login with a code on another device (RFC 8628)."""

import time
from collections.abc import Callable
from typing import Any

from gpudev.cli import output
from gpudev.cli.commands.access.oidc_issuer import (
    LoginRejected,
    OidcClient,
    OidcEndpoints,
    OidcTokens,
    ask_for_tokens,
    check_address,
    post,
)
from gpudev.cli.exit_codes import CliError, ExitCode
from gpudev.sdk.errors import Unreachable

_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
_USUAL_PAUSE = 5.0
_LONGEST_PAUSE = 60.0
_SLOW_DOWN_BY = 5.0
_LONGEST_WAIT = 1800.0


def log_in(client: OidcClient, endpoints: OidcEndpoints, sleep: Callable[[float], None] = time.sleep) -> OidcTokens:
    if endpoints.device is None:
        raise CliError(
            ExitCode.AUTH,
            f"{client.issuer} does not support device login",
            "Run `gpu-dev login --browser` on a machine with a browser",
        )
    response = post(endpoints.device, {**client.form_fields(), "scope": " ".join(client.scopes)})
    _show_code(response)
    fields = {"grant_type": _GRANT, "device_code": _text(response, "device_code")}
    pause = min(max(_number(response, "interval", _USUAL_PAUSE), 1.0), _LONGEST_PAUSE)
    deadline = time.monotonic() + min(_number(response, "expires_in", _LONGEST_WAIT), _LONGEST_WAIT)
    while time.monotonic() < deadline:
        sleep(pause)
        try:
            return ask_for_tokens(endpoints.token, client, fields)
        except LoginRejected as rejected:
            match rejected.oauth_code:
                case "authorization_pending":
                    continue
                case "slow_down":
                    pause = min(pause + _SLOW_DOWN_BY, _LONGEST_PAUSE)
                case "expired_token":
                    break
                case "access_denied":
                    raise CliError(ExitCode.AUTH, "the login was denied on the other device") from rejected
                case _:
                    raise
        except Unreachable as error:
            if error.final:
                raise
            pause = min(pause * 2, _LONGEST_PAUSE)
    raise CliError(ExitCode.AUTH, "timed out waiting for the code to be entered", "Try again: `gpu-dev login`")


def _show_code(response: dict[str, Any]) -> None:
    address, code = check_address(response.get("verification_uri"), "its device login"), _text(response, "user_code")
    complete = response.get("verification_uri_complete")
    lines = ["Log in on any device: open", f"  {address}", f"and enter the code  {output.clean(code)}"]
    if isinstance(complete, str) and complete:
        lines.append(f"(or open {check_address(complete, 'its device login')} and compare the code)")
    output.write_note("\n".join(lines))


def _text(response: dict[str, Any], name: str) -> str:
    value = response.get(name)
    if not isinstance(value, str) or not value:
        raise CliError(ExitCode.UNREACHABLE, f"the issuer's response has no {name}", "Ask the API's operator")
    return value


def _number(response: dict[str, Any], name: str, default: float) -> float:
    value = response.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and value > 0 else default
