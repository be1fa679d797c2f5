"""Apache ECharts, which draws what the page draws: where it is from, and where it lies.

The build of the package puts it there (`hatch_build.py`), from the npm registry, so that nothing is
loaded when a page is written or read. `python -m ncc_runtime.report.page.drawing_library` does the
same later, for a package that was built where no registry could be reached. This file is read
before anything is installed, so it uses Python's own library only.
"""

import base64
import contextlib
import hashlib
import io
import os
import sys
import tarfile
import tempfile
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path

VERSION = "6.1.0"
INTEGRITY = (
    "sha512-q0yaFPggC9FUdsWH4blavRWFmxdrIodbkoKNAjJudAI6"
    "CA9gNPxHtV2RcZNEepZVlk4yvBYkOkbk6HIVpIyHZA=="
)
"""Of the registry's tarball, as npm writes it into lock files."""

FILES = {
    "dist/echarts.min.js": "echarts.min.js",
    "LICENSE": "LICENSE",
    "NOTICE": "NOTICE",
    "licenses/LICENSE-d3": "LICENSE-d3",
}
"""What is taken of the tarball, and how it is called here."""

FOLDER = Path(__file__).parent / "library" / f"echarts-{VERSION}"

PUBLIC_REGISTRY = "https://registry.npmjs.org"
TIMEOUT_S = 60


def is_complete(folder: Path = FOLDER) -> bool:
    """Whether all files of this version are there."""
    return all((folder / name).is_file() for name in FILES.values())


def registry() -> str:
    """The registry that npm is told to use: by its variable, or `.npmrc` here or at home."""
    # npm reads its variables in small letters and in capitals
    given = {name.lower(): word for name, word in os.environ.items() if word}
    if word := given.get("npm_config_registry"):
        return word.rstrip("/")
    home = given.get("npm_config_userconfig") or Path("~/.npmrc").expanduser()
    for file in (Path(".npmrc"), Path(home)):
        with contextlib.suppress(OSError, UnicodeDecodeError):
            for line in file.read_text().splitlines():
                key, equals, value = line.partition("=")
                if equals and key.strip() == "registry":
                    return value.strip().strip("\"'").rstrip("/")
    return PUBLIC_REGISTRY


def tarball(name: str, version: str, integrity: str) -> bytes:
    """A package of the registry; OSError if it cannot be had, ValueError if it is another one."""
    url = f"{registry()}/{name}/-/{name}-{version}.tgz"
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise ValueError(f"{url} is no address of a registry")
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:  # noqa: S310 - checked above
        data: bytes = answer.read()
    check(url, data, integrity)
    return data


def check(source: str, data: bytes, integrity: str) -> None:
    """ValueError if data is not what the integrity is of."""
    found = "sha512-" + base64.b64encode(hashlib.sha512(data).digest()).decode()
    if found != integrity:
        raise ValueError(f"{source} is not the expected file: its hash is {found}")


def unpack(data: bytes, files: Mapping[str, str], folder: Path) -> None:
    """Write some members of a tarball into a folder, each whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member, name in files.items():
            stream = archive.extractfile(f"package/{member}")
            assert stream is not None, member
            handle, temporary = tempfile.mkstemp(dir=folder)
            with os.fdopen(handle, "wb") as file:
                file.write(stream.read())
            Path(temporary).chmod(0o644)
            Path(temporary).replace(folder / name)


def install(file: str | None = None) -> None:
    """Put the library where pages take it from: from the registry, or from a tarball on disk.

    OSError if it cannot be had, ValueError if it is not the pinned version.
    """
    if file is None:
        data = tarball("echarts", VERSION, INTEGRITY)
    else:
        data = Path(file).read_bytes()
        check(file, data, INTEGRITY)
    unpack(data, FILES, FOLDER)


if __name__ == "__main__":
    try:
        install(*sys.argv[1:2])
    except (OSError, ValueError) as error:
        sys.exit(f"error: echarts {VERSION} is not installed: {error}")
