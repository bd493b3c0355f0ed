"""What tests take over from whoever runs them."""

from support.clean_environment import settle


def test_nothing_that_belongs_to_somebodys_own_work_is_left() -> None:
    theirs = {
        "AWS_PROFILE": "mine", "KUBECONFIG": "/mine", "GIT_DIR": "/mine/.git", "GPU_DEV_API_URL": "http://mine",
        "PGHOST": "mine", "LC_ALL": "de_DE.UTF-8", "NO_COLOR": "1", "COLUMNS": "20", "TMPDIR": "/tmp/" + "x" * 100,
    }  # fmt: skip
    kept = {
        "PATH": "/bin",
        "HOME": "/mine",
        "TERM": "xterm",
        "TZ": "Asia/Tokyo",
        "GPU_DEV_TEST_INFRA": "1",
        "GPU_DEV_DEX": "/dex",
    }
    environ = theirs | kept | {"http_proxy": "http://proxy:3128", "no_proxy": "mine.example"}
    settle(environ)
    assert environ == kept | {
        "LANG": "C.UTF-8",
        "http_proxy": "http://proxy:3128",
        "no_proxy": "mine.example,127.0.0.1,localhost,::1",
        "NO_PROXY": "mine.example,127.0.0.1,localhost,::1",
    }


def test_somebody_without_a_home_or_a_terminal_gets_them() -> None:
    environ: dict[str, str] = {}
    settle(environ)
    assert environ["HOME"].startswith("/")
    assert environ["TERM"] == "dumb"
