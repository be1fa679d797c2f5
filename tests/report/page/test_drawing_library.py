"""Where the library that draws is from: the registry that npm is told, checked by its hash."""

import base64
import hashlib
import io
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from ncc_runtime.report.page import drawing_library as library

ROOT = Path(__file__).parents[3]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("npm_config_registry", "NPM_CONFIG_REGISTRY", "npm_config_userconfig"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_registry_is_the_one_that_npm_uses(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert library.registry() == library.PUBLIC_REGISTRY
    (home / ".npmrc").write_text("audit=false\nregistry = https://mirror.example/npm/\n")
    assert library.registry() == "https://mirror.example/npm"
    monkeypatch.setenv("NPM_CONFIG_REGISTRY", "https://other.example")
    assert library.registry() == "https://other.example"


def archive(members: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(f"package/{name}")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def test_a_tarball_is_taken_only_if_its_hash_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = archive({name: name.encode() for name in (*library.FILES, "other.js")})
    file = tmp_path / "x.tgz"
    file.write_bytes(data)
    folder = tmp_path / "library"
    monkeypatch.setattr(library, "FOLDER", folder)
    with pytest.raises(ValueError, match="is not the expected file"):
        library.install(str(file))
    assert not folder.exists()
    hashed = base64.b64encode(hashlib.sha512(data).digest()).decode()
    monkeypatch.setattr(library, "INTEGRITY", f"sha512-{hashed}")
    library.install(str(file))
    assert {path.name: path.read_text() for path in folder.iterdir()} == {
        name: member for member, name in library.FILES.items()
    }
    assert library.is_complete(folder)


def test_no_registry_is_an_error_that_says_so(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPM_CONFIG_REGISTRY", "http://127.0.0.1:9")
    with pytest.raises(OSError, match="refused"):
        library.tarball("echarts", library.VERSION, library.INTEGRITY)
    monkeypatch.setenv("NPM_CONFIG_REGISTRY", "file:///etc")
    with pytest.raises(ValueError, match="no address of a registry"):
        library.tarball("echarts", library.VERSION, library.INTEGRITY)


def test_it_is_read_before_anything_is_installed() -> None:
    path = ROOT / "ncc_runtime/report/page/drawing_library.py"
    code = f"import runpy; runpy.run_path({str(path)!r})"
    done = subprocess.run(
        [sys.executable, "-S", "-I", "-c", code], check=False, capture_output=True
    )
    assert done.returncode == 0, done.stderr


def test_this_environment_has_the_library() -> None:
    assert library.is_complete()
