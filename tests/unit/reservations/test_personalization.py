"""What people may bring to their dev servers, and that nothing of it is shown when it is refused."""

import pytest

from gpudev.domain.errors import Invalid
from gpudev.domain.reservations.personalization import Personalization, check_dotfiles, check_personalization

SECRET = "planted-4711"


@pytest.mark.parametrize(
    "name",
    ["HF_TOKEN", "_x", "A" * 128, "LD_PRELOAD", "BASH_ENV", "TMPDIR", "MASTER_PORT"],
)
def test_a_variable_of_ones_own_may_be_brought(name: str) -> None:
    check_personalization(Personalization({name: SECRET}))


@pytest.mark.parametrize(
    "name",
    [
        "",
        "1A",
        "A-B",
        "A B",
        "A=B",
        "Ä",
        "A\n",
        "A" * 129,
        "HOME",
        "PATH",
        "SHELL",
        "USER",
        "GPU_DEV_USER",
        "SSH_AUTH_SOCK",
        "CUDA_VISIBLE_DEVICES",
        "XDG_RUNTIME_DIR",
    ],
)
def test_a_name_that_is_none_or_the_systems_own_is_refused_without_its_value(name: str) -> None:
    with pytest.raises(Invalid) as refused:
        check_personalization(Personalization({name: SECRET}))
    assert refused.value.field == "environment"
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    "environment",
    [
        {"A": "x\0y"},
        {"A": "x" * 32 * 1024 + "y"},
        {"A": "\ud800"},
        {f"A{n}": "" for n in range(201)},
        {f"A{n}": "x" * 30_000 for n in range(5)},
    ],
    ids=["a NUL", "too long", "no text", "too many", "too much together"],
)
def test_values_are_limited(environment: dict[str, str]) -> None:
    with pytest.raises(Invalid) as refused:
        check_personalization(Personalization(environment))
    assert "xx" not in str(refused.value)


def test_a_value_may_have_many_lines() -> None:
    check_personalization(Personalization({"KEY": "-----BEGIN-----\nabc\n-----END-----\n"}))


@pytest.mark.parametrize(
    "url",
    [
        "https://github.com/ada/dotfiles",
        "https://git.example.com:8443/ada/dotfiles.git",
        "ssh://git@git.example.com:2222/ada/dotfiles.git",
        "git@github.com:ada/dotfiles.git",
    ],
)
def test_git_repositories_are_taken_as_dotfiles(url: str) -> None:
    assert check_dotfiles(url) == url


@pytest.mark.parametrize(
    "url",
    [
        "",
        "dotfiles",
        "--upload-pack=touch /tmp/x",
        "-oProxyCommand=x@host:y",
        "ext::sh -c touch% /tmp/x",
        "file:///etc",
        "/etc",
        "http://github.com/ada/dotfiles",
        "git://github.com/ada/dotfiles",
        f"https://ada:{SECRET}@github.com/ada/dotfiles",
        f"https://{SECRET}@github.com/ada/dotfiles",
        "https://github.com/ada/dotfiles\n--x",
        "https://github.com/ada/dot files",
        "https://-host/x",
        "https://github.com/" + "a" * 500,
    ],
)
def test_anything_else_is_refused_as_dotfiles_and_not_repeated(url: str) -> None:
    with pytest.raises(Invalid) as refused:
        check_dotfiles(url)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("script", ["", " \n", "echo\0", "#" * 64 * 1024 + "#"])
def test_a_script_is_text_of_a_sensible_length(script: str) -> None:
    with pytest.raises(Invalid):
        check_personalization(Personalization(startup_script=script))


def test_a_setup_shows_nothing_of_itself() -> None:
    setup = Personalization({"A": SECRET}, f"https://github.com/{SECRET}", f"echo {SECRET}")
    assert SECRET not in repr(setup)
    assert SECRET not in str(setup)
