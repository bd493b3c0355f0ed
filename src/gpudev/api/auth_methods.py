"""Which ways in there are, by the settings."""

from gpudev.settings import Settings
from gpudev.wire.access import LoginMethod


def list_login_methods(settings: Settings) -> list[LoginMethod]:
    """In the order in which a client should prefer them."""
    methods = []
    if settings.aws_login.accounts:
        methods.append(
            LoginMethod(
                kind="aws",
                server_names=list(settings.server_names),
                roles=list(settings.aws_login.roles),
                regions=list(settings.aws_login.regions),
            )
        )
    if settings.oidc.issuer:
        methods.append(
            LoginMethod(
                kind="oidc",
                issuer=settings.oidc.issuer,
                client_id=settings.oidc.client_id,
                client_secret=settings.oidc.client_secret or None,
                scopes=list(settings.oidc.scopes),
            )
        )
    methods.append(LoginMethod(kind="invitation"))
    if settings.cluster == "local":
        methods.append(LoginMethod(kind="local"))
    return methods
