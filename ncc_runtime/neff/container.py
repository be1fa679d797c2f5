"""The `.neff` file: a header and a plain tar, written atomically and read with suspicion.

One program has one spelling in bytes. A file is accepted only if it is exactly what `pack` makes of
the program that it holds, so no part of it goes unread.

The header of 1,024 bytes has AWS's public fields and the hashes that guard the file. Source:
neuron-runtime/explore/work-with-neff-files.rst of the AWS Neuron SDK. The first 32 bytes of `pad`
are ours: SHA-256 of the header with those bytes zeroed.
"""

import errno
import hashlib
import io
import os
import struct
import tarfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import attrs

from ncc_runtime.errors import NeffError, reason_of
from ncc_runtime.input_files import MOST_NEFF_BYTES, FileRole, read_stream, recognised
from ncc_runtime.neff.check import check
from ncc_runtime.neff.document import files_of, program_from
from ncc_runtime.neff.program import BufferKind, Program
from ncc_runtime.neff.whole_file import write_whole

HEADER_BYTES = 1024
NEFF_VERSION = (1, 6)
FEATURES = {0: "coalesced-cc", 1: "cc-streams", 2: "elided-constants"}
"""Feature bits this version reads, by bit number; a file sets those that it uses."""

_PKG_VERSION = 1  # 1: both hashes are SHA-256
_BUILD_VERSION = b"ncc neff 1.6"
_NAME_BYTES = 256
_DIGEST_BYTES = 32
_PAD_AT = 556
_SEAL = slice(_PAD_AT, _PAD_AT + _DIGEST_BYTES)

# pkg_version, header_size, data_size, neff_version_major, neff_version_minor (u64);
# neff_build_version; num_tpb; hash; uuid; name; requested_tpb_count; tpb_per_node; feature_bits;
# lnc_size; pad = the seal, then zeros
_LAYOUT = struct.Struct("<5Q128sI32s16s256sI64sQI32s436s")
_NUMBERS = struct.Struct("<5Q")
_FEATURE_BITS = struct.Struct("<Q")
_FEATURE_BITS_AT = 544
_BUILD = slice(40, 168)
_OURS = b"ncc neff "
"""How the build version of our files begins, in any version."""
_HASH = slice(172, 172 + _DIGEST_BYTES)


@attrs.frozen
class Header:
    """The fields of a header beyond its hashes, versions and sizes."""

    name: str
    ranks: int
    feature_bits: int


def header_bytes(header: Header, data: bytes) -> bytes:
    """The header that goes before `data`."""
    digest = hashlib.sha256(data).digest()
    head = _LAYOUT.pack(
        _PKG_VERSION,
        HEADER_BYTES,
        len(data),
        *NEFF_VERSION,
        _BUILD_VERSION,
        header.ranks,
        digest,
        uuid.uuid5(uuid.NAMESPACE_OID, digest.hex()).bytes,
        # in UTF-8, cut between characters so that a zero byte follows
        header.name.encode()[: _NAME_BYTES - 1].decode(errors="ignore").encode(),
        header.ranks,
        bytes(64),  # one kelf node on any number of cores: nothing to say per node
        header.feature_bits,
        0,  # lnc_size: decided when the file is loaded
        bytes(_DIGEST_BYTES),
        b"",
    )
    return head[: _SEAL.start] + _seal(head) + head[_SEAL.stop :]


def _seal(head: bytes) -> bytes:
    return hashlib.sha256(head[: _SEAL.start] + bytes(_DIGEST_BYTES) + head[_SEAL.stop :]).digest()


def checked_data_size(head: bytes, path: str) -> int:
    """How many bytes follow the header; NeffError unless it is intact and of a known version."""
    if other := recognised(head, FileRole.PROGRAM):
        raise NeffError(f"{path}: not a .neff file, but {other}")
    if len(head) < HEADER_BYTES:
        raise NeffError(
            f"{path}: {len(head)} bytes, a .neff starts with a header of {HEADER_BYTES}: "
            "empty, cut off or not a .neff file"
        )
    head = head[:HEADER_BYTES]
    package, header_size, data_size, *version = _NUMBERS.unpack_from(head)
    if header_size != HEADER_BYTES:
        raise NeffError(
            f"{path}: not a .neff file: header_size is {header_size}, must be {HEADER_BYTES}"
        )
    is_intact = _seal(head) == head[_SEAL]
    build = head[_BUILD].rstrip(b"\0")
    if not build.startswith(_OURS) and head[_SEAL] == bytes(_DIGEST_BYTES):
        raise NeffError(
            f"{path}: a .neff of another compiler, such as AWS's neuronx-cc "
            f"({build[:40].decode(errors='replace') or 'it has no build version'}): it holds "
            "machine code, which is not simulated; compile the HLO that it was made of with nccc"
        )
    if (package, *version) != (_PKG_VERSION, *NEFF_VERSION):
        raise NeffError(f"{path}: {_version_text(package, version, is_intact)}")
    if not is_intact:
        raise NeffError(f"{path}: the header is damaged: its hash differs; compile the model again")
    (bits,) = _FEATURE_BITS.unpack_from(head, _FEATURE_BITS_AT)
    unknown = [bit for bit in range(64) if bits >> bit & 1 and bit not in FEATURES]
    if unknown:
        names = ", ".join(f"bit {bit} ({1 << bit:#x})" for bit in unknown)
        raise NeffError(f"{path}: uses features this version does not know: {names}; update ncc")
    return int(data_size)


def _version_text(package: int, version: list[int], is_intact: bool) -> str:
    file = f"neff version {version[0]}.{version[1]} (package {package})"
    known = f"this reads {NEFF_VERSION[0]}.{NEFF_VERSION[1]} (package {_PKG_VERSION})"
    if not is_intact:
        return f"{file}, {known}: damaged or from another version; compile the model again"
    if (package, *version) > (_PKG_VERSION, *NEFF_VERSION):
        return f"{file}, {known}: made by a newer version; update ncc or compile the model again"
    return f"{file}, {known}: made by an older version; compile the model again"


def check_data(head: bytes, data_bytes: int, digest: bytes, path: str) -> None:
    """NeffError unless what follows the header has the size and SHA-256 that it states."""
    expected = checked_data_size(head, path)
    if data_bytes < expected:
        raise NeffError(
            f"{path}: cut off: {data_bytes} of {expected} bytes after the header; "
            "copy or compile it again"
        )
    if data_bytes > expected:
        raise NeffError(
            f"{path}: {data_bytes - expected} bytes too many: the header says {expected} "
            f"after it, there are {data_bytes}; copy or compile it again"
        )
    if digest != head[_HASH]:
        raise NeffError(f"{path}: the data is damaged: its hash differs; compile the model again")


_BLOCK = 512  # tar works in blocks of this many bytes
_TAR_NAME = slice(0, 100)
_TAR_SIZE = slice(124, 136)
_COALESCED, _STREAMS, _ELIDED = 1 << 0, 1 << 1, 1 << 2  # the bits of header.FEATURES


def pack(program: Program) -> bytes:
    """The `.neff` bytes of a program that passes `check`; the same program gives the same bytes."""
    data = _tar(files_of(program))
    coalesced = any(len(placeholder.operands) > 1 for placeholder in program.placeholders)
    streams = any(placeholder.stream for placeholder in program.placeholders)
    elided = any(buffer.kind is BufferKind.ELIDED for buffer in program.buffers)
    features = _COALESCED * coalesced | _STREAMS * streams | _ELIDED * elided
    return header_bytes(Header(program.name, program.ranks, features), data) + data


def _tar(files: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, contents in files.items():
            member = tarfile.TarInfo(name)  # mtime, uid and gid are 0, the mode is 0644
            member.size = len(contents)
            tar.addfile(member, io.BytesIO(contents))
    return stream.getvalue()


def unpack(data: bytes, path: str) -> Program:
    """The program in the bytes of a `.neff`; NeffError with `path` and the reason otherwise."""
    head = data[:HEADER_BYTES]
    checked_data_size(head, path)
    body = data[HEADER_BYTES:]
    check_data(head, len(body), hashlib.sha256(body).digest(), path)
    try:
        program = program_from(dict(_members(body)))
    except NeffError as error:
        raise NeffError(f"{path}: {_one_line(error)}; compile the model again") from error
    broken = check(program)
    if broken:
        more = f" (and {len(broken) - 1} more)" if len(broken) > 1 else ""
        raise NeffError(f"{path}: {_one_line(broken[0])}{more}; compile the model again")
    _check_spelling(data, pack(program), path)
    return program


def _one_line(message: object) -> str:
    return " ".join(str(message).splitlines())


def _members(tar: bytes) -> Iterator[tuple[str, bytes]]:
    """Names and contents of a plain tar; odd ones fail the comparison of spellings later."""
    at = 0
    while at + _BLOCK <= len(tar) and tar[at] != 0:
        head = tar[at : at + _BLOCK]
        try:
            name = head[_TAR_NAME].rstrip(b"\0").decode("ascii")
            size = int(head[_TAR_SIZE].rstrip(b"\0 "), 8)
        except ValueError as error:
            raise NeffError(f"the tar header at byte {at} is not plain USTAR") from error
        at += _BLOCK
        if not 0 <= size <= len(tar) - at:
            raise NeffError(f"{name!r} claims {size} bytes, {len(tar) - at} are left")
        yield name, tar[at : at + size]
        at += -(-size // _BLOCK) * _BLOCK


def _check_spelling(data: bytes, expected: bytes, path: str) -> None:
    if data == expected:
        return
    pairs = enumerate(zip(data, expected, strict=False))
    offset = next((at for at, (a, b) in pairs if a != b), min(len(data), len(expected)))
    raise NeffError(
        f"{path}: byte {offset} is not what this version writes for the program inside; "
        "compile the model again"
    )


def load(path: str | os.PathLike[str]) -> Program:
    """Read and check a `.neff` file."""
    place = os.fspath(path)
    try:
        with Path(place).open("rb") as stream:
            head = stream.read(HEADER_BYTES)
            size = checked_data_size(head, place)
            body = read_stream(stream, min(size, MOST_NEFF_BYTES), place)
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise NeffError(
                f"{place}: more bytes follow the header than the {size} that it says; "
                "copy or compile it again"
            ) from error
        raise NeffError(f"{place}: {reason_of(error)}") from error
    return unpack(head + body, place)


def save(data: bytes, path: str | os.PathLike[str]) -> None:
    """Write a file so that at any moment either the old one or the complete new one is there.

    A symbolic link is followed. What is no regular file (`/dev/stdout`, a pipe) is written to.
    """
    place = os.fspath(path)
    try:
        write_whole(place, data)
    except OSError as error:
        raise NeffError(f"{place}: cannot be written: {reason_of(error)}") from error
