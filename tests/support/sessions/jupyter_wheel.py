"""A package named jupyterlab whose program is the stand-in for Jupyter: for installing without the Internet."""

import zipfile
from pathlib import Path

from support.paths import SUPPORT

_NAME = "jupyterlab-99.0"
_FILES = {
    f"{_NAME}.dist-info/METADATA": "Metadata-Version: 2.1\nName: jupyterlab\nVersion: 99.0\n",
    f"{_NAME}.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    f"{_NAME}.dist-info/entry_points.txt": "[console_scripts]\njupyter-lab = jupyterlab.main:main\n",
    "jupyterlab/__init__.py": "",
    "jupyterlab/main.py": (
        "import sys\nimport runpy\nfrom pathlib import Path\n\n\ndef main():\n"
        "    if '--version' in sys.argv:\n        return print('99.0')\n"
        "    runpy.run_path(str(Path(__file__).with_name('stub.py')), run_name='__main__')\n"
    ),
    "jupyterlab/stub.py": (SUPPORT / "sessions" / "jupyter_stub.py").read_text(),
}


def write_jupyter_wheel(folder: Path) -> Path:
    path = folder / f"{_NAME}-py3-none-any.whl"
    record = f"{_NAME}.dist-info/RECORD"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in _FILES.items():
            archive.writestr(name, text)
        archive.writestr(record, "".join(f"{name},,\n" for name in (*_FILES, record)))
    return path
