"""Columns of protocol buffer messages, against the library."""

import numpy as np
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

from ncc_runtime.report.timeline import perfetto_file

UUID = pb.TrackEvent.DESCRIPTOR.fields_by_name["track_uuid"].number
FLOW = pb.TrackEvent.DESCRIPTOR.fields_by_name["flow_ids"].number
EVENT = pb.TracePacket.DESCRIPTOR.fields_by_name["track_event"].number


def test_numbers_of_every_length_are_encoded_as_the_library_does():
    numbers = [0, 1, 127, 128, 16383, 16384, 2**31, 2**56, 2**63 - 1]
    rows = perfetto_file.varint(UUID, np.array(numbers))
    wanted = b"".join(pb.TrackEvent(track_uuid=n).SerializeToString() for n in numbers)
    assert rows.flat() == wanted


def test_negative_numbers_take_ten_bytes():
    number = pb.DebugAnnotation.DESCRIPTOR.fields_by_name["int_value"].number
    rows = perfetto_file.varint(number, np.array([-1, 5, -(2**40)]))
    wanted = [pb.DebugAnnotation(int_value=n).SerializeToString() for n in (-1, 5, -(2**40))]
    assert rows.flat() == b"".join(wanted)


def test_messages_of_different_lengths_name_their_own():
    uuids, flows = np.array([3, 2**40]), np.array([7, 0])
    event = perfetto_file.joined(
        [perfetto_file.varint(UUID, uuids), perfetto_file.fixed64(FLOW, flows).where(flows > 0)]
    )
    data = perfetto_file.message(EVENT, event)
    first, second = np.split(np.arange(len(data.flat())), [int(data.lengths[0])])
    found = [
        pb.TracePacket.FromString(bytes(data.flat()[k] for k in one)) for one in (first, second)
    ]
    assert [one.track_event.track_uuid for one in found] == [3, 2**40]
    assert [list(one.track_event.flow_ids) for one in found] == [[7], []]
