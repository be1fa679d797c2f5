"""Run as a module: what jax gives every device of some sharded arrays, as JSON.

By NamedSharding through its HLO text; and for texts given, what jaxlib reads them as.
"""

import json
import sys

import jax
import numpy as np
from jax._src.lib import xla_client
from jax.sharding import AxisType, NamedSharding, PartitionSpec

SPECS = [
    ((2, 4), ("a", "b"), spec)
    for spec in [
        ("a",),
        ("b", "a"),
        (("a", "b"),),
        (("b", "a"), None),
        (None, "b"),
        ("a", "b"),
        (None, ("b", "a")),
        (),
    ]
] + [
    ((2, 2, 2), ("x", "y", "z"), spec)
    for spec in [("z", "x"), (("x", "z"), "y"), (("z", "y"),), (None, ("y", "x")), ("y",)]
]

FORMS = [
    "{mesh['a'=2,'b'=4], [{'a'}, {}]}",
    "{mesh['a'=2,'b'=4], [{'b', 'a'}, {}]}",
    "{mesh['a'=2,'b'=4], [{'a', ?}, {?}]}",
    "{mesh['a'=2,'b'=4], [{'a'}, {'b':(1)2}], replicated={'b':(2)2}}",
    "{mesh['a'=2,'b'=4], [{'b':(2)2}, {'b':(1)2}]}",
    "{mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)), [{'b'}, {}]}",
    "{mesh['a'=2,'b'=4], device_ids=(0,2,1,3,7,6,5,4), [{'a'}, {'b'}]}",
    "{mesh['a'=2,'b'=4], [{}, {}]}",
    "{mesh['a'=2,'b'=4], [{'a'}, {}], unreduced={'b'}}",
    "{mesh['a'=2,'b'=4], [{'a'}, {}], manual={'b'}}",
    "{devices=[2,2,2]<=[2,4]T(1,0) last_tile_dims={replicated}}",
    "{devices=[2,4]7,6,5,4,3,2,1,0}",
]


def main() -> None:
    array = np.arange(64).reshape(8, 8)
    named = []
    for sizes, names, spec in SPECS:
        mesh = jax.make_mesh(sizes, names, axis_types=(AxisType.Auto,) * len(sizes))
        sharding = NamedSharding(mesh, PartitionSpec(*spec))
        where = sharding.devices_indices_map(array.shape)
        parts = [array[where[device]].tolist() for device in jax.devices()]
        named.append([str(sharding._to_xla_hlo_sharding(2)), parts])
    read = []
    for text in FORMS:
        sharding = xla_client.HloSharding.from_string(text)
        read.append([text, str(xla_client.HloSharding.v3_to_v2_sharding(sharding))])
    json.dump({"named": named, "read": read}, sys.stdout)


if __name__ == "__main__":
    main()
