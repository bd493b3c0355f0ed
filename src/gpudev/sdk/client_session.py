"""Who asks, and whom: the person's settings, the API's address, and the key for it.

On one machine the owner is logged in by itself; nobody else ever is.
"""

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import NoReturn

from gpudev import paths
from gpudev.domain.trace_context import new_trace_id
from gpudev.sdk import api_address as address
from gpudev.sdk import credentials, preferences
from gpudev.sdk.credentials import Credential
from gpudev.sdk.errors import Unauthenticated
from gpudev.sdk.http.api_client import PAUSES, Core
from gpudev.sdk.http.transport import Transport

KEY_VARIABLE = "GPU_DEV_API_KEY"
_WHILE_IT_STARTS = (*PAUSES, 2.0, 2.0, 2.0, 2.0)
"""On one machine there is one API: while that begins anew, nobody else answers."""


class Session:
    option_name = "api_url"
    """What whoever names an address calls it."""

    def __init__(
        self,
        api_url: str | None = None,
        env: Mapping[str, str] | None = None,
        pin: str | None = None,
        *,
        api_key: str | None = None,
    ) -> None:
        """`pin`: the fingerprint of the key the API must show; None: the one that is kept for its address, if any."""
        self._api_url = api_url
        self._given_pin = pin
        self._api_key = api_key
        self.env = os.environ if env is None else env

    @cached_property
    def preferences(self) -> preferences.Preferences:
        return preferences.load(paths.config_file(self.env))

    @cached_property
    def address(self) -> address.Address:
        embedded_url = address.find_embedded(paths.system_file(self.env))
        return address.choose(self._api_url, self.env, self.preferences, embedded_url, self.option_name)

    @cached_property
    def _is_kept_running(self) -> bool:
        return self.address.embedded and address.is_kept_running(paths.supervisor_file(self.env))

    @property
    def _pauses(self) -> Sequence[float]:
        return _WHILE_IT_STARTS if self._is_kept_running else PAUSES

    @cached_property
    def _trace_id(self) -> str:
        """All that one command asks belongs together."""
        return new_trace_id()

    def new_core(self) -> Core:
        if self._api_key is not None:
            return self.core_with(self._api_key)
        return Core(self.address.url, self._key, self._renewed_key, pauses=self._pauses)

    def core_with(self, key: str) -> Core:
        """With this key and no other."""
        return Core(self.address.url, lambda: check_key(key, "the key"), pauses=self._pauses)

    def anonymous_core(self) -> Core:
        """For what is open to everybody: the ways to log in."""
        return Core(self.address.url, None, pauses=self._pauses)

    def impatient_core(self) -> Core:
        """For what is nice to know: one try, and no login."""
        return Core(self.address.url, self._key_at_hand, pauses=PAUSES[:0])

    def new_transport(self) -> Transport:
        step = "`gpu-dev up` starts the system on this machine"
        if self._is_kept_running:
            step = f"It is being started again; what it says is in {paths.log_dir(self.env)}"
        elif not self.address.is_local:
            step = "Check your network, and the address with `gpu-dev config show`"
        return Transport(self.address.url, when_unreachable=step, pin=self._pin, trace_id=self._trace_id)

    def log_in_as_owner(self) -> Credential:
        from gpudev.sdk import automatic_login

        return self.keep(automatic_login.log_in(paths.state_dir(self.env), instead_of=self.stored()))

    def log_in_again(self, stored: Credential) -> Credential:
        """In the way that `stored` was got. Nobody is asked."""
        from gpudev.sdk import logging_in

        return logging_in.log_in_again(self.address.url, self.env)

    def stored(self) -> Credential | None:
        return credentials.find(paths.credentials_file(self.env), self.address.url)

    def keep_rotated(self, refused: str | None, fresh: str, expires_at: str | None) -> None:
        """Instead of the one that was stored, if that was the one."""
        stored = self.stored()
        if stored is not None and stored.api_key == refused:
            self.keep(stored._replace(api_key=fresh, expires_at=expires_at))

    def keep(self, credential: Credential) -> Credential:
        check_key(credential.api_key, "what the API gave")
        credentials.store(paths.credentials_file(self.env), self.address.url, credential)
        return credential

    @cached_property
    def _pin(self) -> str | None:
        """Without TLS there is no key to show."""
        if self._given_pin is not None or not self.address.url.startswith("https:"):
            return self._given_pin
        from gpudev.sdk.http.certificate_pins import find_pin

        return find_pin(self.env, self.address.url)

    def _key(self) -> str:
        """The key at hand; the owner of the system on this machine gets one without asking."""
        key = self._find_key()
        if key is None and self.address.embedded:
            return self.log_in_as_owner().api_key
        return key if key is not None else self._need_key()

    def _key_at_hand(self) -> str:
        return self._find_key() or self._need_key()

    def _find_key(self) -> str | None:
        if variable := self.env.get(KEY_VARIABLE):
            return check_key(variable, KEY_VARIABLE)
        path = paths.credentials_file(self.env)
        stored = credentials.find(path, self.address.url)
        return None if stored is None else check_key(stored.api_key, f"the key in {path}")

    def _need_key(self) -> NoReturn:
        raise Unauthenticated(f"you are not logged in to {self.address.url}", "Run `gpu-dev login`")

    def _renewed_key(self, refused: str) -> str | None:
        """A key that has ended is replaced without a word where we know how it was got, or where it was the owner's
        own; a key that somebody gave us is not, for we would become another user."""
        if self.env.get(KEY_VARIABLE):
            return None
        stored = self.stored()
        if stored is not None and stored.api_key != refused and not _is_over(stored):
            return stored.api_key  # another of our programs has been here
        if stored is not None and stored.login:
            return self.log_in_again(stored).api_key
        if not self.address.embedded:
            return None
        from gpudev.sdk import automatic_login

        if stored is not None and stored.username != automatic_login.name():
            return None
        return self.log_in_as_owner().api_key


def _is_over(credential: Credential) -> bool:
    from datetime import UTC, datetime

    if credential.expires_at is None:
        return False
    try:
        return datetime.fromisoformat(credential.expires_at) <= datetime.now(UTC)
    except (ValueError, TypeError):
        return True


def check_key(text: str, where: str) -> str:
    """A key that can stand in a header."""
    key = text.strip()
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise Unauthenticated(f"{where} is no API key", "Run `gpu-dev login`")
    return key
