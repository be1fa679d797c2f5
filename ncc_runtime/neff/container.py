"""The `.neff` file: a header and a plain tar, written atomically and read with suspicion.

One program has one spelling in bytes. A file is accepted only if it is exactly what `pack` makes of
the program that it holds, so no part of it goes unread.
"""

import errno
import hashlib
import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

from ncc_runtime.errors import NeffError, reason_of
from ncc_runtime.input_files import MOST_NEFF_BYTES, read_stream
from ncc_runtime.neff.check import check
from ncc_runtime.neff.document import files_of, program_from
from ncc_runtime.neff.header import (
    HEADER_BYTES,
    Header,
    check_data,
    checked_data_size,
    header_bytes,
)
from ncc_runtime.neff.program import BufferKind, Program
from ncc_runtime.neff.whole_file import write_whole

_BLOCK = 512  # tar works in blocks of this many bytes
_TAR_NAME = slice(0, 100)
_TAR_SIZE = slice(124, 136)
_COALESCED, _STREAMS, _ELIDED = 1 << 0, 1 << 1, 1 << 2  # the bits of header.FEATURES


def pack(program: Program) -> bytes:
    """The `.neff` bytes of a program that passes `check`; the same program gives the same bytes."""
    data = _tar(files_of(program))
    return header_bytes(Header(program.name, program.ranks, _feature_bits(program)), data) + data


def _feature_bits(program: Program) -> int:
    coalesced = any(len(placeholder.operands) > 1 for placeholder in program.placeholders)
    streams = any(placeholder.stream for placeholder in program.placeholders)
    elided = any(buffer.kind is BufferKind.ELIDED for buffer in program.buffers)
    return _COALESCED * coalesced | _STREAMS * streams | _ELIDED * elided


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


def _check_spelling(found: bytes, expected: bytes, path: str) -> None:
    if found == expected:
        return
    pairs = enumerate(zip(found, expected, strict=False))
    offset = next((at for at, (a, b) in pairs if a != b), min(len(found), len(expected)))
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
    """Write a file so that at any moment either the old one or the whole new one is there.

    A symbolic link is followed. What is no regular file (`/dev/stdout`, a pipe) is written to.
    """
    place = os.fspath(path)
    try:
        write_whole(place, data)
    except OSError as error:
        raise NeffError(f"{place}: cannot be written: {reason_of(error)}") from error
