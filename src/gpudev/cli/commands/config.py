"""`gpu-dev config`."""

import json
import os
from pathlib import Path
from typing import IO

import click

from gpudev import paths
from gpudev.cli import config as preferences
from gpudev.cli import output
from gpudev.cli.command_session import CommandSession
from gpudev.cli.config import API_URL, Preferences
from gpudev.cli.exit_codes import CliError, ExitCode, usage_error
from gpudev.sdk.api_address import region_of
from gpudev.sdk.errors import ClientError

_region_option = click.option("--region", help="The region whose api_url is meant (default: the current one).")


@click.group()
def config() -> None:
    """Get, set and show settings.

    \b
    github_user       whose published GitHub keys may log in to your dev servers
    api_url           the API's address, kept per region
    default_gpu_type  the GPU type when --type is not given
    default_hours     the hours when --hours is not given
    default_disk      the disk when --disk is not given; 'none' for scratch space
    ssh_config        off: `reserve` leaves ssh's configuration alone
    dotfiles          your dotfiles' git repository, for every new dev server
    startup_script    a file that is run in every new dev server
    env_file          a file of NAME=VALUE lines for every new dev server
    """


@config.command("get")
@click.argument("name")
@_region_option
def get_one(name: str, region: str | None) -> None:
    """Print one setting."""
    name = preferences.check_preference_name(name)
    where = _choose_region(name, region)
    value = _find_value(preferences.load_preferences(_config_path()), name, where)
    if value is None:
        place = f" for {where}" if name == API_URL else ""
        raise CliError(ExitCode.NOT_FOUND, f"{name} is not set{place}", f"Set it: `gpu-dev config set {name} VALUE`")
    output.write_line(output.clean(value))


@config.command("set")
@click.argument("name")
@click.argument("value")
@_region_option
def set_one(name: str, value: str, region: str | None) -> None:
    """Set one setting."""
    name = preferences.check_preference_name(name)
    where = _choose_region(name, region)
    parsed = preferences.parse_preference(name, value)
    preferences.store_preference(_config_path(), name, parsed, where)
    output.write_line(f"{name} is now {_format_value(parsed)}{f' for {where}' if name == API_URL else ''}.")


@config.command("unset")
@click.argument("name")
@_region_option
def unset_one(name: str, region: str | None) -> None:
    """Forget one setting."""
    name = preferences.check_preference_name(name)
    where = _choose_region(name, region)
    preferences.store_preference(_config_path(), name, None, where)
    output.write_line(f"{name} is not set any more{f' for {where}' if name == API_URL else ''}.")


@config.command("import")
@click.argument("file", type=click.File("rb"), default="-")
def import_all(file: IO[bytes]) -> None:
    """Take the API's address from what the infrastructure tells about itself.

    FILE holds its output `cli_config`; -, or none: standard input.

    \b
        tofu output -raw cli_config | gpu-dev config import
    """
    url, region = preferences.parse_cli_config(file.read())
    preferences.store_preference(_config_path(), API_URL, url, region)
    output.write_line(f"{API_URL} is now {url} for {region}.")
    if region != region_of(os.environ):
        output.write_line(f"Commands use {region_of(os.environ)}: `export AWS_REGION={region}` to reach it.")


@config.command("show")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show_all(as_json: bool) -> None:
    """Show all settings, and which API they lead to."""
    known = preferences.load_preferences(_config_path())
    in_use = _address_in_use()
    plain = {name: getattr(known, name) for name in preferences.PREFERENCE_NAMES if name != API_URL}
    if as_json:
        about = {"path": str(_config_path()), "region": region_of(os.environ), "api_url_in_use": in_use}
        output.write_line(json.dumps({**plain, API_URL: dict(known.api_urls), **about}))
        return
    for name, value in plain.items():
        output.write_line(f"{name:<18}{_format_value(value)}")
    for region, url in known.api_urls or ((region_of(os.environ), None),):
        output.write_line(f"{API_URL:<18}{_format_value(url)}  ({region})")
    output.write_line(f"{'in use':<18}{in_use or 'no API: `gpu-dev up`, or `gpu-dev config set api_url URL`'}")
    output.write_line(f"{'region':<18}{region_of(os.environ)}")
    output.write_line(f"{'kept in':<18}{_config_path()}")


def _config_path() -> Path:
    return paths.config_file(os.environ)


def _choose_region(name: str, region: str | None) -> str:
    if region is None:
        return region_of(os.environ)
    if name != API_URL:
        raise usage_error(f"{name} holds in every region; --region is for api_url")
    return preferences.check_region(region)


def _find_value(known: Preferences, name: str, region: str) -> str | None:
    value = known.api_url(region) if name == API_URL else getattr(known, name)
    return None if value is None else _format_value(value)


def _address_in_use() -> str | None:
    try:
        return CommandSession().address.url
    except ClientError:
        return None


def _format_value(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:g}" if isinstance(value, float) else output.clean(value)
