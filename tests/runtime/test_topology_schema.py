"""The JSON Schema of topologies: shipped as it is made, kept by every shipped file."""

import json
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

import jsonschema
import pytest

from ncc_runtime.errors import TopologyError
from ncc_runtime.topology.format import schema
from ncc_runtime.topology.format.spec import examples, presets
from ncc_runtime.topology.format.toml_file import TomlFile
from ncc_runtime.topology.graph import build

SHIPPED = resources.files("ncc_runtime.topology") / "topology.schema.json"


def shipped_files() -> list[Traversable]:
    folders = (presets(), examples())
    return [one for folder in folders for one in folder.iterdir() if one.name.endswith(".toml")]


def test_the_shipped_schema_is_the_one_that_files_are_held_against() -> None:
    assert SHIPPED.read_text() == schema.schema_text(), "write schema.schema_text() there"


def test_the_schema_is_one_of_json_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(json.loads(SHIPPED.read_text()))


@pytest.mark.parametrize("file", shipped_files(), ids=lambda file: file.name)
def test_a_shipped_file_keeps_the_schema(file: Traversable) -> None:
    read = TomlFile.read(file.name, file)
    schema.check(read, read.tables())


LEVELS = """name = "mine"
base = "trn2.48xlarge"

[[level]]
name = "board"
kind = "torus"
dims = {value = [2, 2], source = "s"}
bandwidth_bytes_per_s = {value = 128000000, source = "s"}
latency_ps = {value = 5, source = "s"}

[[level]]
name = "up"
kind = "switch"
size = {value = 4, source = "s"}
bandwidth_bytes_per_s = {value = 64000000, source = "s"}
latency_ps = {value = 7, source = "s"}
"""


def complaint(directory: Path, text: str) -> str:
    path = directory / "mine.toml"
    path.write_text(text)
    with pytest.raises(TopologyError) as refused:
        build(str(path))
    return str(refused.value).removeprefix(f"{directory}/")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[2, 2]", "[2, 0]", "7:17: level 0: dims: [2, 0] is not a list of integers from 1"),
        ("[2, 2]", "[2, 2, 2, 2]", "7:8: level.board.dims: a torus has 1 to 3 extents, not 4"),
        (
            "value = 128000000,",
            "value = [1000000, 2000000, 3000000],",
            "8:25: level.board.bandwidth_bytes_per_s: 3 values",
        ),
        ('"torus"', '"cube"', "6:8: level 0: kind: 'cube' is not one of torus, ring, line, switch"),
        ("kind = ", "sort = ", "6:8: level 0: sort: unknown key; known: name, kind, joins, dims"),
        ("size = ", "sise = ", "14:8: level 1: sise: unknown key; did you mean size"),
        (
            'kind = "switch"',
            'kind = "ring"\njoins = "chips"',
            "14:9: level 1: joins: chips of all units to a ring; say places",
        ),
        (
            'kind = "switch"',
            'kind = "switch"\njoins = "switches"',
            "14:9: level.up.joins: switches, but the level below has no switches",
        ),
        ('name = "up"', 'name = "board"', "12:8: level 1: name: board is a level before"),
        ('name = "up"', 'name = "u p"', "12:8: level 1: name: 'u p' is not a word of at most 16"),
        ("size = {value = 4", "size = {value = 9999", "14:8: level.up.size: 39996 chips are more"),
        (
            "size = {value = 4",
            "links = {value = [[0, 1]], source = 's'}\nsize = {value = 4",
            "14:9: level 1: links: a switch has none; it has size, latency_ps, bandwidth",
        ),
        ("[[level]]", "[link]\nlatency_ps = {value = 5, source = 's'}\n[[level]]", "5:14: link."),
        (
            "[[level]]",
            "[chips]\ncount = {value = 5, source = 's'}\n[[level]]",
            "5:9: chips.count: 5, the levels hold 16: 4 of board x 4 of up",
        ),
        ('name = "mine"', 'name = "mine"\nchips = 3', "2:9: chips: 3 is not a table, with keys"),
        ('name = "mine"', "name = = 3", "1:8: not TOML: invalid value"),
        (
            'kind = "switch"',
            'kind = "switch"\noversubscription = {value = nan, source = "s"}',
            "14:20: level.up.oversubscription: nan is not a number from 1 to 1000",
        ),
        ('source = "s"}', 'source = ""}', "7:34: level 0: dims: the source is empty"),
        ('base = "trn2.48xlarge"', 'base = "trn9"', "2:8: base: 'trn9' is unknown; known: "),
    ],
)
def test_a_complaint_has_line_column_value_and_remedy(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    assert complaint(tmp_path, LEVELS.replace(old, new, 1)).startswith(f"mine.toml:{message}")


def test_columns_count_characters_and_keys_may_be_quoted_and_dotted(tmp_path: Path) -> None:
    text = 'name = "é"\n"link"."latency_ps" = {source = "ä", value = 1.5}\n'
    assert complaint(tmp_path, text).startswith("mine.toml:2:46: link.latency_ps: 1.5 is not")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "1:1: name: missing"),
        (b"\xff\xfe\x00", "1:1: not UTF-8 text at byte 0; save it as UTF-8"),
        (b'name = "a"\n# \xe9', "2:3: not UTF-8 text at byte 13"),
        (b"\xef\xbb\xbfa\xff", "1:2: not UTF-8 text at byte 4"),  # behind a byte order mark
        (b'\xef\xbb\xbfname = "a"\nbase = 3', "2:8: base: 3 is not a line of text"),
        (b'name = "a"\nname = "b"', "2:11: not TOML: cannot overwrite a value"),
        (b'name = " "', "1:8: name: ' ' is not a line of text with a word in it"),
        (b'name = "a"', "1:8: lnc.allowed: missing; give {value = "),
    ],
)
def test_a_complaint_has_a_place_even_where_a_file_is_hardly_one(
    tmp_path: Path, data: bytes, message: str
) -> None:
    file = tmp_path / "mine.toml"
    file.write_bytes(data)
    with pytest.raises(TopologyError) as refused:
        build(str(file))
    assert str(refused.value).removeprefix(f"{tmp_path}/").startswith(f"mine.toml:{message}")


def test_a_figure_of_the_base_that_no_longer_fits_is_told_at_the_base(tmp_path: Path) -> None:
    text = 'name = "a"\nbase = "trn2"\n'.replace("trn2", "trn2.48xlarge")
    text += 'chips.count = {value = 6, source = "s"}\nfabric.dims = {value = [2, 3], source = "s"}'
    assert complaint(tmp_path, text) == (
        "mine.toml:2:8: efa.adapters: 16 adapters do not divide 6 chips; "
        "the base says so, give efa.adapters"
    )


CLUSTER = """
[[level]]
name = "ether"
kind = "cluster"
adapters = {value = 4, source = "s"}
bandwidth_bytes_per_s = {value = 50000000000, source = "s"}
latency_ps = {value = 20000000, source = "s"}
"""
LIMIT = 'queue_pair_bandwidth_bytes_per_s = {value = 20000000000, source = "s"}\n'


@pytest.mark.parametrize(
    ("text", "limit", "alone"),
    [
        ('name = "mine"\nbase = "trn2.48xlarge"\n', 19_300_000_000, 19_300_000_000),
        ('name = "mine"\nbase = "trn2.48xlarge"\n[efa]\n' + LIMIT, 20_000_000_000, 20_000_000_000),
        # another network: what is known of the base's is not known of it
        (LEVELS + CLUSTER, 0, 50_000_000_000),
        (LEVELS + CLUSTER + LIMIT, 20_000_000_000, 20_000_000_000),
        # as a figure of the same network, no more than its adapter
        (
            'name = "mine"\nbase = "trn2.48xlarge"\n[efa]\n'
            'adapter_bandwidth_bytes_per_s = {value = 9000000000, source = "s"}\n',
            19_300_000_000,
            9_000_000_000,
        ),
    ],
)
def test_a_queue_pairs_rate_is_that_of_its_network(
    tmp_path: Path, text: str, limit: int, alone: int
) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    topology = build(str(path), 2)
    assert topology.efa is not None
    assert topology.efa.queue_pair_bandwidth_bytes_per_s == limit
    assert topology.rank_efa_bandwidth_bytes_per_s == alone


def test_a_queue_pairs_rate_has_the_bounds_of_rates(tmp_path: Path) -> None:
    text = 'name = "mine"\nbase = "trn2.48xlarge"\n[efa]\n' + LIMIT.replace("20000000000", "9")
    assert complaint(tmp_path, text).startswith(
        "mine.toml:4:45: efa.queue_pair_bandwidth_bytes_per_s: 9 is not an integer from 10^6"
    )
