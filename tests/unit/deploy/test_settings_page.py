"""The page of settings names what the server reads, and nothing else."""

import re
from pathlib import Path

from gpudev import settings

PAGE = Path(__file__).parents[3] / "docs" / "operations" / "settings.md"
NOT_READ_WITH_THE_OTHERS = {"GPU_DEV_DEBUG"}
"""The command line reads it, before anything else."""
SET_BY_KUBERNETES = {"KUBERNETES_SERVICE_HOST"}
"""In every pod. It is nobody's setting."""


def test_every_setting_is_on_the_page_and_the_page_has_no_other() -> None:
    rows = [line.split("|")[1] for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    listed = [name for row in rows for name in re.findall(r"`([A-Z_]+)`", row)]
    environment = settings._RecordingEnvironment({})
    settings.load_settings(environment)
    ours = {name for name in environment.read_names if not name.startswith("XDG_") and name != "HOME"}
    assert sorted(listed) == sorted((ours | NOT_READ_WITH_THE_OTHERS) - SET_BY_KUBERNETES)
