"""What a command works with: preferences, the API's address, and the API, logged in."""

from functools import cached_property

from gpudev.cli.api_calls import CommandApi
from gpudev.sdk import client_session
from gpudev.sdk.credentials import Credential


class CommandSession(client_session.ClientSession):
    option_name = "--api-url"

    @cached_property
    def api(self) -> CommandApi:
        return self.new_api()

    def new_api(self) -> CommandApi:
        """One more, for another thread."""
        return CommandApi(self.new_client(), self.new_transport())

    def api_with_key(self, key: str) -> CommandApi:
        """With this key and no other."""
        return CommandApi(self.client_with_key(key), self.new_transport())

    def anonymous_api(self) -> CommandApi:
        """For what is open to everybody: the ways to log in."""
        return CommandApi(self.anonymous_client(), self.new_transport())

    def single_try_api(self) -> CommandApi:
        """For what is nice to know: one try, and no login."""
        return CommandApi(self.single_try_client(), self.new_transport())

    def log_in_again(self, stored: Credential) -> Credential:
        from gpudev.cli.commands.access import login_methods

        return self.store_credential(login_methods.log_in_again(self, stored))
