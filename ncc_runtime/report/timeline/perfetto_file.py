"""The timeline as a Perfetto trace, `.pftrace`, which ui.perfetto.dev opens.

Times are whole nanoseconds there, rounded down; arguments have the picoseconds. Words are stored
once and referred to by number (Perfetto's interned data).

Packets of slices are many, so they are encoded as columns: a column of encoded fields is a matrix
of bytes with a mask of those that count, since rows have different lengths. Source: protobuf.dev,
Encoding. Field numbers and all other packets are those of the package perfetto.
"""

from collections.abc import Iterator, Sequence
from typing import BinaryIO

import attrs
import numpy as np
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

from ncc_runtime.report.timeline.tracks import (
    Argument,
    Around,
    Samples,
    Slices,
    Texts,
    TimelineBatch,
    Track,
)

_VARINT, _FIXED64, _LENGTH = 0, 1, 2


@attrs.frozen(eq=False)
class Rows:
    """Encoded bytes, a row for each message."""

    data: np.ndarray  # (n, width) uint8
    counts: np.ndarray  # (n, width) bool: belongs to the row

    @property
    def lengths(self) -> np.ndarray:
        """Bytes of every row, (n,) int64."""
        return np.asarray(self.counts.sum(axis=1, dtype=np.int64))

    def flat(self) -> bytes:
        """All rows, one after another."""
        return self.data[self.counts].tobytes()

    def where(self, given: np.ndarray | None) -> "Rows":
        """The same, empty where nothing is given."""
        return self if given is None else Rows(self.data, self.counts & given[:, None])


def joined(parts: Sequence[Rows]) -> Rows:
    """Fields of the same messages, one behind another."""
    return Rows(
        np.concatenate([part.data for part in parts], axis=1),
        np.concatenate([part.counts for part in parts], axis=1),
    )


def constant(data: bytes, count: int) -> Rows:
    """The same bytes in every row."""
    row = np.frombuffer(data, np.uint8)
    return Rows(np.broadcast_to(row, (count, len(row))), np.ones((count, len(row)), bool))


def varint(field: int, values: np.ndarray) -> Rows:
    """A field of whole numbers, int64 as protobuf's int64 and uint64 have them."""
    bare = _varints(values)
    return joined([_tag(field, _VARINT, len(values)), bare])


def fixed64(field: int, values: np.ndarray) -> Rows:
    """A field of 8 bytes: float64 as double, int64 as fixed64."""
    data = np.ascontiguousarray(values).astype(values.dtype.newbyteorder("<"))
    bare = data.view(np.uint8).reshape(-1, 8)
    return joined([_tag(field, _FIXED64, len(values)), Rows(bare, np.ones(bare.shape, bool))])


def message(field: int, rows: Rows) -> Rows:
    """A field that is a message."""
    count = len(rows.data)
    return joined([_tag(field, _LENGTH, count), _varints(rows.lengths), rows])


def _tag(field: int, kind: int, count: int) -> Rows:
    key, data = field << 3 | kind, bytearray()
    while key > 0x7F:
        data.append(key & 0x7F | 0x80)
        key >>= 7
    return constant(bytes([*data, key]), count)


def _varints(values: np.ndarray) -> Rows:
    """Seven bits a byte, lowest first; all but the last have the top bit set."""
    left = values.astype(np.int64).view(np.uint64)
    widest = int(left.max(initial=0))
    columns, counts = [], []
    for at in range(max(1, -(-widest.bit_length() // 7))):
        rest = left >> np.uint64(7)
        columns.append((left & np.uint64(0x7F)) | ((rest > 0).astype(np.uint64) << np.uint64(7)))
        counts.append(left > 0 if at else np.ones(len(left), bool))
        left = rest
    return Rows(np.stack(columns, axis=1).astype(np.uint8), np.stack(counts, axis=1))


_SEQUENCE = 1
_PS_PER_NS = 1000
_MOST_WORDS = 1 << 16
"""Words that are remembered before all are forgotten, by writer and reader alike."""

_PACKET = {field.name: field.number for field in pb.TracePacket.DESCRIPTOR.fields}
_EVENT = {field.name: field.number for field in pb.TrackEvent.DESCRIPTOR.fields}
_ARGUMENT = {field.name: field.number for field in pb.DebugAnnotation.DESCRIPTOR.fields}
_TRACE_PACKET = pb.Trace.DESCRIPTOR.fields_by_name["packet"].number


class PerfettoWriter:
    """Writes batch after batch to a stream."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._words: dict[str, dict[str, int]] = {}  # by field of InternedData
        self._count = 0
        self._forget()

    def write(self, content: TimelineBatch | Samples) -> None:
        """Append tracks, then slices or samples."""
        for track in content.tracks:
            self._packet(pb.TracePacket(track_descriptor=_descriptor(track)))
        if isinstance(content, Samples):
            self._stream.write(_samples(content))
            return
        if self._count > _MOST_WORDS:
            self._forget()
        # beginning and end of every slice, one row for both
        records = joined([self._begins(content.slices), _ends(content.slices)])
        if content.around is None:
            self._stream.write(records.flat())
        else:
            self._stream.writelines(self._enclosed(records, content.around))

    def end(self) -> None:
        """Nothing is left to write."""

    def _forget(self) -> None:
        """Start the numbering of words again."""
        self._words, self._count = {}, 0
        flag = pb.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
        self._packet(pb.TracePacket(sequence_flags=flag))

    def _packet(self, packet: pb.TracePacket) -> None:
        packet.trusted_packet_sequence_id = _SEQUENCE
        self._stream.write(pb.Trace(packet=[packet]).SerializeToString(deterministic=True))

    def _begins(self, slices: Slices) -> Rows:
        count = len(slices)
        category = self._numbers("event_categories", [slices.category])
        fields = [
            _of_kind("TYPE_SLICE_BEGIN", count),
            varint(_EVENT["track_uuid"], slices.track),
            varint(_EVENT["category_iids"], np.repeat(category, count)),
            varint(_EVENT["name_iid"], self._codes("event_names", slices.name, None)),
        ]
        fields += [_arrow("flow_ids", column) for column in slices.leaves]
        fields.append(_arrow("terminating_flow_ids", slices.arrives))
        fields += [self._argument(argument, count) for argument in slices.arguments]
        return _packets(slices.start_ps, joined(fields))

    def _argument(self, argument: Argument, count: int) -> Rows:
        name = self._numbers("debug_annotation_names", [argument.name])
        rows = [varint(_ARGUMENT["name_iid"], np.repeat(name, count))]
        values, given = argument.values, argument.given
        if isinstance(values, Texts):
            codes = self._codes("debug_annotation_string_values", values, given)
            rows.append(varint(_ARGUMENT["string_value_iid"], codes))
        elif values.dtype.kind == "f":
            rows.append(fixed64(_ARGUMENT["double_value"], values))
        else:
            rows.append(varint(_ARGUMENT["int_value"], values))
        return message(_EVENT["debug_annotations"], joined(rows)).where(given)

    def _codes(self, kind: str, texts: Texts, given: np.ndarray | None) -> np.ndarray:
        """The numbers of a column's words, which the stream has by then; 0 where none is given."""
        used = texts.code if given is None else texts.code[given]
        distinct = np.unique(used)
        numbers = np.zeros(len(texts.words), np.int64)
        numbers[distinct] = self._numbers(kind, [texts.words[code] for code in distinct.tolist()])
        return numbers[texts.code if given is None else np.where(given, texts.code, 0)]

    def _numbers(self, kind: str, words: Sequence[str]) -> np.ndarray:
        """Numbers of words; new ones are written to the stream first."""
        known = self._words.setdefault(kind, {})
        fresh = pb.InternedData()
        for word in words:
            if word not in known:
                known[word] = len(known) + 1
                entry = getattr(fresh, kind).add(iid=known[word])
                if kind == "debug_annotation_string_values":
                    entry.str = word.encode()
                else:
                    entry.name = word
                self._count += 1
        if fresh.ByteSize():
            flag = pb.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
            self._packet(pb.TracePacket(interned_data=fresh, sequence_flags=flag))
        return np.array([known[word] for word in words], np.int64)

    def _enclosed(self, records: Rows, around: Around) -> Iterator[bytes]:
        """Records, and between them beginnings and ends of what encloses them."""
        begins, ends = self._begins(around.slices), _ends(around.slices)
        flat = records.flat()
        edges = np.append(0, np.cumsum(records.lengths))
        last = np.minimum(around.last + 1, len(edges) - 1)
        inserts = [*zip(edges[last].tolist(), range(len(last)), [ends] * len(last), strict=True)]
        inserts += zip(
            edges[around.first].tolist(), range(len(last)), [begins] * len(last), strict=True
        )
        done = 0
        for at, number, rows in sorted(inserts, key=lambda insert: insert[0]):
            yield flat[done:at]
            yield rows.data[number][rows.counts[number]].tobytes()
            done = at
        yield flat[done:]


def _descriptor(track: Track) -> pb.TrackDescriptor:
    descriptor = pb.TrackDescriptor(uuid=track.number, name=track.name)
    if not track.parent:
        descriptor.process.pid = track.order + 1
        descriptor.process.process_name = track.name
        descriptor.child_ordering = pb.TrackDescriptor.EXPLICIT
        return descriptor
    descriptor.parent_uuid, descriptor.sibling_order_rank = track.parent, track.order
    if track.is_counter:
        descriptor.counter.unit_name = "GB/s"
    return descriptor


def _of_kind(name: str, count: int) -> Rows:
    return varint(_EVENT["type"], np.full(count, pb.TrackEvent.Type.Value(name), np.int64))


def _arrow(field: str, numbers: np.ndarray) -> Rows:
    return fixed64(_EVENT[field], numbers.astype(np.int64)).where(numbers != 0)


def _ends(slices: Slices) -> Rows:
    fields = [
        _of_kind("TYPE_SLICE_END", len(slices)),
        varint(_EVENT["track_uuid"], slices.track),
    ]
    return _packets(slices.end_ps, joined(fields))


def _samples(samples: Samples) -> bytes:
    fields = [
        _of_kind("TYPE_COUNTER", len(samples.track)),
        varint(_EVENT["track_uuid"], samples.track),
        fixed64(_EVENT["double_counter_value"], samples.value),
    ]
    return _packets(samples.time_ps, joined(fields)).flat()


def _packets(time_ps: np.ndarray, event: Rows) -> Rows:
    """Track events as packets of the trace."""
    count = len(time_ps)
    numbers = {
        "timestamp": time_ps.astype(np.int64) // _PS_PER_NS,
        "trusted_packet_sequence_id": np.full(count, _SEQUENCE),
        "sequence_flags": np.full(count, pb.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE),
    }
    fields = [varint(_PACKET[name], values) for name, values in numbers.items()]
    fields.append(message(_PACKET["track_event"], event))
    return message(_TRACE_PACKET, joined(fields))
