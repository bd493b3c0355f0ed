"""The client's session: preferences, the API's address, and the key for it.

The owner of the system on this machine is logged in automatically; nobody else is.
"""

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import NoReturn

from gpudev import paths
from gpudev.domain.trace_context import new_trace_id
from gpudev.sdk import api_address as address
from gpudev.sdk import user_files
from gpudev.sdk.errors import Unauthenticated
from gpudev.sdk.http.api_client import RETRY_PAUSES, ApiClient
from gpudev.sdk.http.transport import HttpTransport
from gpudev.sdk.user_files import KEY_VARIABLE, Credential, check_key

_RESTART_PAUSES = (*RETRY_PAUSES, 2.0, 2.0, 2.0, 2.0)
"""Longer, because on one machine no other API process responds during a restart."""


class ClientSession:
    option_name = "api_url"
    """How messages call the `api_url` argument."""

    def __init__(
        self,
        api_url: str | None = None,
        env: Mapping[str, str] | None = None,
        pin: str | None = None,
        *,
        api_key: str | None = None,
    ) -> None:
        """`pin`: fingerprint of the key that the API must present; None: the stored one for its address, if any."""
        self._api_url = api_url
        self._given_pin = pin
        self._api_key = api_key
        self.env = os.environ if env is None else env

    @cached_property
    def preferences(self) -> user_files.Preferences:
        return user_files.load_preferences(paths.config_file(self.env))

    @cached_property
    def address(self) -> address.ApiAddress:
        embedded_url = address.find_embedded_url(paths.system_file(self.env))
        return address.choose_address(self._api_url, self.env, self.preferences, embedded_url, self.option_name)

    @cached_property
    def _is_supervised(self) -> bool:
        return self.address.embedded and address.is_supervised(paths.supervisor_file(self.env))

    @property
    def _pauses(self) -> Sequence[float]:
        return _RESTART_PAUSES if self._is_supervised else RETRY_PAUSES

    @cached_property
    def _trace_id(self) -> str:
        """Shared by all requests of one command."""
        return new_trace_id()

    def new_client(self) -> ApiClient:
        if self._api_key is not None:
            return self.client_with_key(self._api_key)
        return ApiClient(self.address.url, self._find_or_create_key, self._renew_key, pauses=self._pauses)

    def client_with_key(self, key: str) -> ApiClient:
        """Uses only this key."""
        return ApiClient(self.address.url, lambda: check_key(key, "the key"), pauses=self._pauses)

    def anonymous_client(self) -> ApiClient:
        """Without a key, for public endpoints such as the login methods."""
        return ApiClient(self.address.url, None, pauses=self._pauses)

    def single_try_client(self) -> ApiClient:
        """For optional lookups: no retries, no login."""
        return ApiClient(self.address.url, self._require_key, pauses=RETRY_PAUSES[:0])

    def new_transport(self) -> HttpTransport:
        step = "`gpu-dev up` starts the system on this machine"
        if self._is_supervised:
            step = f"It is restarting; its logs are in {paths.log_dir(self.env)}"
        elif not self.address.is_local:
            step = "Check your network, and the address with `gpu-dev config show`"
        return HttpTransport(self.address.url, when_unreachable=step, pin=self._pin, trace_id=self._trace_id)

    def log_in_as_owner(self) -> Credential:
        from gpudev.sdk import automatic_login

        return self.store_credential(
            automatic_login.log_in_as_owner(paths.state_dir(self.env), instead_of=self.find_stored_credential())
        )

    def log_in_again(self, stored: Credential) -> Credential:
        """Repeat the login of `stored`, without questions."""
        from gpudev.sdk import automatic_login

        return automatic_login.log_in_again(self.address.url, self.env)

    def find_stored_credential(self) -> Credential | None:
        return user_files.find_credential(paths.credentials_file(self.env), self.address.url)

    def replace_stored_key(self, rejected: str | None, key: str, expires_at: str | None) -> None:
        """Only if the stored key is the rejected one."""
        stored = self.find_stored_credential()
        if stored is not None and stored.api_key == rejected:
            self.store_credential(stored._replace(api_key=key, expires_at=expires_at))

    def store_credential(self, credential: Credential) -> Credential:
        check_key(credential.api_key, "the API's new key")
        user_files.store_credential(paths.credentials_file(self.env), self.address.url, credential)
        return credential

    @cached_property
    def _pin(self) -> str | None:
        """None without TLS."""
        if self._given_pin is not None or not self.address.url.startswith("https:"):
            return self._given_pin
        from gpudev.sdk.http.certificate_pins import find_pin

        return find_pin(self.env, self.address.url)

    def _find_or_create_key(self) -> str:
        """The configured key; the owner of the system on this machine gets one automatically."""
        key = self._find_key()
        if key is None and self.address.embedded:
            return self.log_in_as_owner().api_key
        return key if key is not None else self._raise_not_logged_in()

    def _require_key(self) -> str:
        return self._find_key() or self._raise_not_logged_in()

    def _find_key(self) -> str | None:
        if variable := self.env.get(KEY_VARIABLE):
            return check_key(variable, KEY_VARIABLE)
        path = paths.credentials_file(self.env)
        stored = user_files.find_credential(path, self.address.url)
        return None if stored is None else check_key(stored.api_key, f"the key in {path}")

    def _raise_not_logged_in(self) -> NoReturn:
        raise Unauthenticated(f"you are not logged in to {self.address.url}", "Run `gpu-dev login`")

    def _renew_key(self, rejected: str) -> str | None:
        """Renew a key that came from a login method or belongs to the owner. A key entered by hand is not renewed,
        because the new key could belong to another user."""
        if self.env.get(KEY_VARIABLE):
            return None
        stored = self.find_stored_credential()
        if stored is not None and stored.api_key != rejected and not _is_expired(stored):
            return stored.api_key  # renewed by another process
        if stored is not None and stored.login:
            return self.log_in_again(stored).api_key
        if not self.address.embedded:
            return None
        if stored is not None and stored.username != paths.os_username():
            return None
        return self.log_in_as_owner().api_key


def _is_expired(credential: Credential) -> bool:
    from datetime import UTC, datetime

    if credential.expires_at is None:
        return False
    try:
        return datetime.fromisoformat(credential.expires_at) <= datetime.now(UTC)
    except (ValueError, TypeError):
        return True
