"""The 1,024-byte header of a `.neff`: AWS's public fields, and the hashes that guard the file.

Source: neuron-runtime/explore/work-with-neff-files.rst of the AWS Neuron SDK. The first 32 bytes of
`pad` are ours: SHA-256 of the header with those bytes zeroed.
"""

import hashlib
import struct
import uuid

import attrs

from ncc_runtime.errors import NeffError

HEADER_BYTES = 1024
NEFF_VERSION = (1, 3)
FEATURES = {0: "coalesced-cc", 1: "cc-streams", 2: "elided-constants"}
"""Feature bits this version reads, by bit number; a file sets those that it uses."""

_PKG_VERSION = 1  # 1: both hashes are SHA-256
_BUILD_VERSION = b"ncc neff 1.3"
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
_HASH = slice(172, 172 + _DIGEST_BYTES)


@attrs.frozen
class Header:
    """What a header says beyond its hashes, versions and sizes."""

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
        _cut(header.name),
        header.ranks,
        bytes(64),  # one kelf node on any number of cores: nothing to say per node
        header.feature_bits,
        0,  # lnc_size: decided when the file is loaded
        bytes(_DIGEST_BYTES),
        b"",
    )
    return head[: _SEAL.start] + _seal(head) + head[_SEAL.stop :]


def _cut(name: str) -> bytes:
    """The name in UTF-8, cut between characters so that a zero byte follows it."""
    return name.encode()[: _NAME_BYTES - 1].decode(errors="ignore").encode()


def _seal(head: bytes) -> bytes:
    return hashlib.sha256(head[: _SEAL.start] + bytes(_DIGEST_BYTES) + head[_SEAL.stop :]).digest()


def checked_data_size(head: bytes, path: str) -> int:
    """How many bytes follow the header, once it is known to be one, whole and readable here."""
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
    whole = _seal(head) == head[_SEAL]
    if (package, *version) != (_PKG_VERSION, *NEFF_VERSION):
        raise NeffError(f"{path}: {_version_text(package, version, whole)}")
    if not whole:
        raise NeffError(f"{path}: the header is damaged: its hash differs; compile the model again")
    _check_features(head, path)
    return int(data_size)


def _version_text(package: int, version: list[int], whole: bool) -> str:
    found = f"neff version {version[0]}.{version[1]} (package {package})"
    known = f"this reads {NEFF_VERSION[0]}.{NEFF_VERSION[1]} (package {_PKG_VERSION})"
    if not whole:
        return f"{found}, {known}: damaged or from another version; compile the model again"
    if (package, *version) > (_PKG_VERSION, *NEFF_VERSION):
        return f"{found}, {known}: made by a newer version; update ncc or compile the model again"
    return f"{found}, {known}: made by an older version; compile the model again"


def _check_features(head: bytes, path: str) -> None:
    (bits,) = _FEATURE_BITS.unpack_from(head, _FEATURE_BITS_AT)
    unknown = [bit for bit in range(64) if bits >> bit & 1 and bit not in FEATURES]
    if unknown:
        names = ", ".join(f"bit {bit} ({1 << bit:#x})" for bit in unknown)
        raise NeffError(f"{path}: uses features this version does not know: {names}; update ncc")


def check_data(head: bytes, data_bytes: int, digest: bytes, path: str) -> None:
    """Complain unless what follows the header has the size and SHA-256 that it says."""
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
