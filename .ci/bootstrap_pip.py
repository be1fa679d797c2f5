"""Put pip into an environment made with `venv --without-pip`: Debian's python3 has no ensurepip.

Usage: python bootstrap_pip.py ENVIRONMENT_PYTHON. Takes the newest wheel of pip from the package
index (PIP_INDEX_URL, else PyPI), checks its hash, and lets it install itself.
"""

import hashlib
import html.parser
import os
import re
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request
from pathlib import Path

INDEX = os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple")


class Links(html.parser.HTMLParser):
    """The addresses a page of a package index links to (PEP 503)."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value for name, value in attrs if tag == "a" and name == "href" and value]


def newest_wheel() -> tuple[str, str]:
    """Address and SHA-256 of the newest release of pip as a wheel."""
    page = f"{INDEX.rstrip('/')}/pip/"
    links = Links()
    with urllib.request.urlopen(page, timeout=60) as answer:
        links.feed(answer.read().decode())
    wheels = []
    for link in links.found:
        name = re.search(r"/pip-([\d.]+)-py3-none-any\.whl#sha256=([0-9a-f]{64})$", link)
        if name:
            version = tuple(int(part) for part in name[1].split("."))
            wheels.append((version, urllib.parse.urljoin(page, link), name[2]))
    if not wheels:
        sys.exit(f"{page} lists no wheel of pip")
    _, address, digest = max(wheels)
    return address, digest


def main() -> None:
    """Download, check, install."""
    address, digest = newest_wheel()
    with urllib.request.urlopen(address, timeout=60) as answer:
        wheel = answer.read()
    if hashlib.sha256(wheel).hexdigest() != digest:
        sys.exit(f"{address}: the download does not have the hash the index names")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / urllib.parse.urlsplit(address).path.rsplit("/", 1)[-1]
        path.write_bytes(wheel)
        subprocess.run([sys.argv[1], f"{path}/pip", "install", "--quiet", str(path)], check=True)


if __name__ == "__main__":
    main()
