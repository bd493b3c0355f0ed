"""What a command has to work with: the person's settings, the API's address, and the API itself, logged in."""

from functools import cached_property

from gpudev.cli.api_calls import Api
from gpudev.sdk import client_session
from gpudev.sdk.client_session import KEY_VARIABLE, check_key
from gpudev.sdk.credentials import Credential

__all__ = ["KEY_VARIABLE", "Session", "check_key"]


class Session(client_session.Session):
    option_name = "--api-url"

    @cached_property
    def api(self) -> Api:
        return self.new_api()

    def new_api(self) -> Api:
        """One more, for another thread."""
        return Api(self.new_core(), self.new_transport())

    def api_with(self, key: str) -> Api:
        """With this key and no other."""
        return Api(self.core_with(key), self.new_transport())

    def anonymous_api(self) -> Api:
        """For what is open to everybody: the ways to log in."""
        return Api(self.anonymous_core(), self.new_transport())

    def impatient_api(self) -> Api:
        """For what is nice to know: one try, and no login."""
        return Api(self.impatient_core(), self.new_transport())

    def log_in_again(self, stored: Credential) -> Credential:
        from gpudev.cli.commands.access import login_methods

        return self.keep(login_methods.log_in_again(self, stored))
