"""What the tests take over from whoever runs them: where programs, caches and the network's proxy are, and no more.

Somebody may have a profile of a cloud, a cluster, a gpu-dev of their own or a git hook under way: no test may use, or
stumble over, any of them. Programs that tests start inherit what is left here.
"""

import os
import pwd
import re
import tempfile
from collections.abc import MutableMapping

_OTHERS = re.compile(
    r"(AWS_|CLOUDSDK_|GOOGLE_|KUBERNETES_|POSTGRES_|PG|API_KEY_|JUPYTER_|GPU_DEV_)\w+"
    r"|GIT_(DIR|WORK_TREE|INDEX_FILE|OBJECT_DIRECTORY|COMMON_DIR|NAMESPACE|PREFIX)"
    r"|LANG|LANGUAGE|LC_\w+|NO_COLOR|FORCE_COLOR|CLICOLOR|CLICOLOR_FORCE|COLUMNS|LINES|BROWSER|EDITOR|VISUAL|PAGER"
    r"|XDG_(CONFIG_HOME|DATA_HOME|STATE_HOME|RUNTIME_DIR)|KUBECONFIG"
    # A program would be started anew where it can be forked (system/warm_programs.py), and every process would
    # compile the tests and what has changed for itself.
    r"|PYTHONUNBUFFERED|PYTHONDONTWRITEBYTECODE"
)
_FOR_TESTS = re.compile(r"GPU_DEV_(TEST_\w+|\w+_BIN|DEX|PROMTOOL)")
_LONGEST_FOLDER = 40
"""A unix socket's path has 107 bytes at most, and tests have theirs some folders below the one for temporary files."""
_HERE = "127.0.0.1,localhost,::1"


def settle(environ: MutableMapping[str, str] = os.environ) -> None:
    for name in [*environ]:
        if _OTHERS.fullmatch(name) and not _FOR_TESTS.fullmatch(name):
            del environ[name]
    environ["LANG"] = "C.UTF-8"
    environ.setdefault("HOME", pwd.getpwuid(os.getuid()).pw_dir)
    environ.setdefault("TERM", "dumb")
    if len(os.fsencode(environ.get("TMPDIR", ""))) > _LONGEST_FOLDER:
        del environ["TMPDIR"]
        tempfile.tempdir = None  # it may have been looked up already
    # Whoever is behind a proxy needs it for downloads; what tests start answers here.
    straight = environ.get("no_proxy") or environ.get("NO_PROXY")
    for name in ("no_proxy", "NO_PROXY"):
        environ[name] = f"{straight},{_HERE}" if straight else _HERE
