"""`gpu-dev config`."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import click

from gpudev import paths
from gpudev.cli import output
from gpudev.cli.command_session import CommandSession
from gpudev.cli.exit_codes import CliError, ExitCode, usage_error
from gpudev.cli.options import DURATION_FORMS, parse_hours
from gpudev.sdk.api_address import region_of
from gpudev.sdk.errors import ClientError
from gpudev.sdk.user_files import API_URL, Preferences, file_lock, load_preferences, read_object, write_object

# Preferences (config.json): parsing and storing. `sdk.user_files` reads them.
#
# `api_url` is stored per region; all other settings apply to every region. `sdk.api_address` chooses the address.


_ALIASES = {"disk": "default_disk"}
_REGION = r"[a-z0-9][a-z0-9-]{0,39}"
_GPU_TYPE = r"[a-z0-9][a-z0-9.-]{0,49}"


def store_preference(path: Path, name: str, value: Any, region: str) -> None:
    """Set one setting; None removes it. Keeps everything else in the file, known or not."""
    with file_lock(path):
        data = read_object(path)
        if name == API_URL:
            kept = data.get(API_URL)
            urls: dict[str, str] = kept if isinstance(kept, dict) else {}
            urls = {where: url for where, url in urls.items() if where != region}
            value = urls | {region: value} if value is not None else urls or None
        if value is None:
            data.pop(name, None)
        else:
            data[name] = value
        write_object(path, data)


def parse_preference(name: str, text: str) -> Any:
    """Parse the value of a setting. Raises a usage error that says what is expected."""
    if text != text.strip() or not text or not text.isprintable():
        raise usage_error(f"invalid value {text!r} for {name}")
    return _PARSERS[check_preference_name(name)](text)


def parse_cli_config(text: bytes) -> tuple[str, str]:
    """The API's address and its region from the output `cli_config` of infra/. Ignores other fields."""
    config_data = _read_cli_config(text)
    if not isinstance(config_data, dict):
        raise usage_error("invalid input (expected a JSON object with api_url and region)")
    values = [config_data.get(name) for name in (API_URL, "region")]
    missing = [name for name, value in zip((API_URL, "region"), values, strict=True) if not isinstance(value, str)]
    if missing:
        raise usage_error(f"the input has no {' and no '.join(missing)}")
    url, region = (str(value) for value in values)
    return str(parse_preference(API_URL, url)), check_region(region)


def _read_cli_config(text: bytes) -> Any:
    """Accepts all outputs, or this one, which `tofu output` puts into quotes unless it is -raw."""
    try:
        data = json.loads(text)
        if isinstance(data, dict) and isinstance(data.get("cli_config"), dict):
            data = data["cli_config"].get("value")
        return json.loads(data) if isinstance(data, str) else data
    except ValueError as error:
        raise usage_error(
            "the input is not valid JSON", "Pass the output `cli_config`: `tofu output -raw cli_config`"
        ) from error


def check_preference_name(name: str) -> str:
    """Resolve aliases and check that the setting exists; a dash is as good as an underscore."""
    name = name.replace("-", "_")
    name = _ALIASES.get(name, name)
    if name not in _PARSERS:
        raise usage_error(f"no setting named {name[:80]!r}", f"Settings: {', '.join(_PARSERS)}")
    return name


def check_region(region: str) -> str:
    if not re.fullmatch(_REGION, region):
        raise usage_error(f"invalid region {region[:80]!r} (expected e.g. us-east-2)")
    return region


def _github_user(text: str) -> str:
    from gpudev.domain.access.ssh_keys import check_github_user
    from gpudev.domain.errors import Invalid

    try:
        return check_github_user(text)
    except Invalid as error:
        raise usage_error(error.message) from error


def _disk(text: str) -> str:
    from gpudev.domain.disks.names import check_disk_name
    from gpudev.domain.errors import Invalid

    try:
        return check_disk_name(text)
    except Invalid as error:
        raise usage_error(error.message) from error


def _gpu_type(text: str) -> str:
    if not re.fullmatch(_GPU_TYPE, text):
        raise usage_error(f"invalid GPU type {text[:80]!r} (expected e.g. a100)", "`gpu-dev avail` lists GPU types")
    return text


def _hours(text: str) -> float:
    hours = parse_hours(text)
    if hours is None:
        raise usage_error(f"invalid duration {text[:80]!r} (expected {DURATION_FORMS})")
    return hours


def _on_or_off(text: str) -> str:
    if text not in ("on", "off"):
        raise usage_error(f"invalid value {text[:80]!r} (expected on or off)")
    return text


def _dotfiles(text: str) -> str:
    from gpudev.domain.errors import Invalid
    from gpudev.domain.reservations.personalization import check_dotfiles

    try:
        return check_dotfiles(text)
    except Invalid as error:
        raise usage_error(error.message) from error


def _existing_file(text: str) -> str:
    """As an absolute path: later commands may run in another folder."""
    path = Path(text).expanduser().absolute()
    if not path.is_file():
        raise usage_error(f"no file {path}")
    return str(path)


def _api_url(text: str) -> str:
    from gpudev.sdk.api_address import check_url

    return check_url(text, "api_url")


_PARSERS: dict[str, Callable[[str], Any]] = {
    "github_user": _github_user,
    API_URL: _api_url,
    "default_gpu_type": _gpu_type,
    "default_hours": _hours,
    "default_disk": _disk,
    "ssh_config": _on_or_off,
    "dotfiles": _dotfiles,
    "startup_script": _existing_file,
    "env_file": _existing_file,
}
PREFERENCE_NAMES = tuple(_PARSERS)
_IF_NOT_SET = {
    "github_user": "on one machine, your own public keys may log in",
    "default_gpu_type": "the only type that has nodes; if there are several, you are asked",
    "default_hours": "set by the server",
    "default_disk": "your disk 'default'",
    "ssh_config": "on",
    "dotfiles": "none",
    "startup_script": "none",
    "env_file": "none",
}
"""What applies without the setting."""


def _complete_names(_context: click.Context, _parameter: click.Parameter, prefix: str) -> list[str]:
    return [name for name in PREFERENCE_NAMES if name.startswith(prefix.replace("-", "_"))]


_region_option = click.option("--region", help="Region of the api_url (default: the current one).")


@click.group()
def config() -> None:
    """Get, set and show settings.

    \b
    github_user       GitHub user whose public keys may log in to your dev servers
    api_url           API address, stored per region
    default_gpu_type  GPU type if --type is not given
    default_hours     hours if --hours is not given
    default_disk      disk if --disk is not given; 'none' for scratch space
    ssh_config        off: `reserve` does not change ssh's configuration
    dotfiles          git repository of your dotfiles, for every new dev server
    startup_script    file to run in every new dev server
    env_file          file of NAME=VALUE lines for every new dev server
    """


@config.command("get")
@click.argument("name", shell_complete=_complete_names)
@_region_option
def get_one(name: str, region: str | None) -> None:
    """Print one setting."""
    name = check_preference_name(name)
    where = _choose_region(name, region)
    value = _find_value(load_preferences(_config_path()), name, where)
    if value is None:
        place = f" for {where}" if name == API_URL else ""
        raise CliError(ExitCode.NOT_FOUND, f"{name} is not set{place}", f"Set it: `gpu-dev config set {name} VALUE`")
    output.write_line(output.clean(value))


@config.command("set")
@click.argument("name", shell_complete=_complete_names)
@click.argument("value")
@_region_option
def set_one(name: str, value: str, region: str | None) -> None:
    """Set one setting.

    \b
    gpu-dev config set default_gpu_type h100
    gpu-dev config set default-hours 2h
    """
    name = check_preference_name(name)
    where = _choose_region(name, region)
    parsed = parse_preference(name, value)
    store_preference(_config_path(), name, parsed, where)
    output.write_line(f"{name} is now {_format_value(parsed)}{f' for {where}' if name == API_URL else ''}.")


@config.command("unset")
@click.argument("name", shell_complete=_complete_names)
@_region_option
def unset_one(name: str, region: str | None) -> None:
    """Remove one setting."""
    name = check_preference_name(name)
    where = _choose_region(name, region)
    store_preference(_config_path(), name, None, where)
    output.write_line(f"{name} is no longer set{f' for {where}' if name == API_URL else ''}.")


@config.command("import")
@click.argument("file", type=click.File("rb"), default="-")
def import_all(file: IO[bytes]) -> None:
    """Set the API address from the output of the infrastructure.

    FILE holds the output `cli_config`; - or no FILE reads standard input.

    \b
        tofu output -raw cli_config | gpu-dev config import
    """
    url, region = parse_cli_config(file.read())
    store_preference(_config_path(), API_URL, url, region)
    output.write_line(f"{API_URL} is now {url} for {region}.")
    if region != region_of(os.environ):
        output.write_line(
            f"Commands use region {region_of(os.environ)}; run `export AWS_REGION={region}` to use this address."
        )


@config.command("show")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show_all(as_json: bool) -> None:
    """Show all settings and what applies without them, and the API address in use."""
    stored = load_preferences(_config_path())
    in_use = _address_in_use()
    plain = {name: getattr(stored, name) for name in PREFERENCE_NAMES if name != API_URL}
    if as_json:
        about = {"path": str(_config_path()), "region": region_of(os.environ), "api_url_in_use": in_use}
        output.write_line(json.dumps({**plain, API_URL: dict(stored.api_urls), **about}))
        return
    for name, value in plain.items():
        shown = f"{_format_value(value)}  (your setting)" if value is not None else f"-  ({_IF_NOT_SET[name]})"
        output.write_line(output.indent_below_label(f"{name:<18}", shown, 18))
    for region, url in stored.api_urls or ((region_of(os.environ), None),):
        output.write_line(f"{API_URL:<18}{_format_value(url)}  ({region})")
    where = f"{in_use}  ({_address_source(stored)})" if in_use else ""
    output.write_line(f"{'in use':<18}{where or 'none: run `gpu-dev up`, or `gpu-dev config set api_url URL`'}")
    output.write_line(f"{'region':<18}{region_of(os.environ)}")
    output.write_line(f"{'stored in':<18}{_config_path()}")


def _config_path() -> Path:
    return paths.config_file(os.environ)


def _choose_region(name: str, region: str | None) -> str:
    if region is None:
        return region_of(os.environ)
    if name != API_URL:
        raise usage_error(f"{name} applies to every region; --region is for api_url only")
    return check_region(region)


def _find_value(stored: Preferences, name: str, region: str) -> str | None:
    value = stored.api_url(region) if name == API_URL else getattr(stored, name)
    return None if value is None else _format_value(value)


def _address_in_use() -> str | None:
    try:
        return CommandSession().address.url
    except ClientError:
        return None


def _address_source(stored: Preferences) -> str:
    if os.environ.get("GPU_DEV_API_URL"):
        return "from GPU_DEV_API_URL"
    return "your setting" if stored.api_url(region_of(os.environ)) else "the system on this machine"


def _format_value(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:g}" if isinstance(value, float) else output.clean(value)
