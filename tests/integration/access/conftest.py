from support.fixtures.api import ada, api, bob, world
from support.fixtures.api import address as api_address
from support.fixtures.aws_login import login_settings, names, place, served, sts
from support.fixtures.oidc_login import address, client, dex, issuer, oidc, services, stranger

__all__ = [
    "ada",
    "address",
    "api",
    "api_address",
    "bob",
    "client",
    "dex",
    "issuer",
    "login_settings",
    "names",
    "oidc",
    "place",
    "served",
    "services",
    "stranger",
    "sts",
    "world",
]
