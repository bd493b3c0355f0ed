"""API keys of this person, as the client finds and stores them: what is wrong with their file is a LocalError."""

from gpudev import credentials_file
from gpudev.credentials_file import Credential
from gpudev.sdk.json_files import local_errors

__all__ = ["Credential", "find_credential", "remove_credential", "store_credential", "store_credential_locked"]

find_credential = local_errors()(credentials_file.find_credential)
store_credential = local_errors()(credentials_file.store_credential)
store_credential_locked = local_errors()(credentials_file.store_credential_locked)
remove_credential = local_errors()(credentials_file.remove_credential)
