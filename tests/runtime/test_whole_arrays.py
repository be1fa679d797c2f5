"""Results of a run as whole arrays, and arguments in the trees of a function."""

import numpy as np
import pytest

import ncc_runtime
from ncc_compiler.driver import compile_model
from ncc_compiler.frontends.foreign import ModelText
from ncc_compiler.ir.whole_array import WholeArray
from ncc_runtime.errors import InputError
from ncc_runtime.execution.values import equal_ranks
from ncc_runtime.neff.container import unpack
from ncc_runtime.neff.listing import parse_program, print_program
from ncc_runtime.neff.program import ArrayInfo, Sharding

TEXT = """HloModule m, num_partitions=4

ENTRY %m_spmd {
  %x = f32[2,3] parameter(0), metadata={op_name="x"}
  %y = f32[2,3] parameter(1)
  %s = f32[2,3] add(%x, %y)
  %d = f32[2,3] subtract(%x, %y)
  ROOT %t = (f32[2,3], f32[2,3]) tuple(%s, %d)
}
"""
ROWS = "{devices=[4,1]<=[4]}"
HALVES = "{devices=[2,1,2]<=[2,2]T(1,0) last_tile_dim_replicate}"  # of ranks 0 and 2, 1 and 3
EVEN, UNEVEN, EQUAL = (8, 3), (7, 3), (2, 3)


def neff(parameters=(), results=()):
    return compile_model(ModelText(TEXT, parameters=parameters, results=results))


def run(neff, *inputs):
    return ncc_runtime.load(neff).run(*inputs, clock=False)


def test_parts_become_a_whole_by_the_name_of_the_result():
    one = neff(results=(WholeArray("sum", ROWS, EVEN), WholeArray("difference", HALVES, (4, 3))))
    x = np.arange(24, dtype=np.float32).reshape(4, 2, 3)
    result = run(one, [x, np.ones_like(x)]).result
    assert list(result) == ["sum", "difference"]
    np.testing.assert_array_equal(result["sum"], x.reshape(8, 3) + 1)
    np.testing.assert_array_equal(result["difference"], x[:2].reshape(4, 3) - 1)  # the lowest rank


def test_what_pads_the_last_part_is_neither_given_nor_taken():
    arrays = (WholeArray("a", ROWS, UNEVEN), WholeArray("b", ROWS, UNEVEN))
    one = neff(arrays, arrays)
    assert one.program.parameters == (ArrayInfo("a", 0, UNEVEN), ArrayInfo("b", 0, UNEVEN))
    assert one.program.shardings == (Sharding((4, 1), (0, 1, 2, 3)),)
    x = np.arange(21, dtype=np.float32).reshape(7, 3)
    result = run(one, {"a": x, "b": 2 * x}).result
    np.testing.assert_array_equal(result["a"], 3 * x)
    np.testing.assert_array_equal(result["b"], -x)


def test_a_whole_array_is_the_callers_own_where_ranks_share_it(monkeypatch):
    monkeypatch.setattr(equal_ranks, "SMALL_BYTES", 0)
    one = neff(results=(WholeArray("same", "{replicated}", EQUAL), WholeArray("rows", ROWS, EVEN)))
    x = np.ones(EQUAL, np.float32)
    done = run(one, x, 2 * x)
    for array in done.result.values():
        array[...] = 0
    assert [len(out.array) for out in done.ranked_outputs] == [1, 1]
    same, rows = done.outputs
    np.testing.assert_array_equal(same, np.full((4, *EQUAL), 3))
    np.testing.assert_array_equal(rows, np.full((4, *EQUAL), -1))


def test_what_is_not_known_stays_rank_by_rank():
    one = neff(results=(WholeArray("same", "{replicated}", EQUAL), WholeArray("some", "{manual}")))
    assert one.program.results == (ArrayInfo("same", None, EQUAL), ArrayInfo("some"))
    x = np.arange(24, dtype=np.float32).reshape(4, 2, 3)
    result = run(one, x, np.zeros_like(x)).result
    np.testing.assert_array_equal(result["same"], x[0])
    np.testing.assert_array_equal(result["some"], x)
    assert list(run(neff(), x, x).result) == ["out0", "out1"]


@pytest.mark.parametrize(
    "results",
    [
        (WholeArray("a", ROWS, (9, 3)), WholeArray("a", "{replicated}", (3, 3))),
        (WholeArray("a", ROWS, (8,)), WholeArray("a", "{devices=[3]<=[3]}", EVEN)),
        (WholeArray("a"), WholeArray("a")),
    ],
)
def test_a_sharding_that_does_not_fit_is_passed_over(results):
    one = neff(results=results)
    assert one.program.results == (ArrayInfo("a"), ArrayInfo("a"))
    assert list(run(one, np.ones(EQUAL), np.ones(EQUAL)).result) == ["out0", "out1"]


def test_the_file_and_its_listing_keep_them():
    one = neff(results=(WholeArray("result[0]['w']", ROWS, UNEVEN), WholeArray("b", ROWS, EVEN)))
    assert unpack(one.data, "m").results == one.program.results
    listing = print_program(one.program)
    assert (
        """results\n  0  "result[0]['w']"  s0  of [7,3]\n  1  b                 s0\n""" in listing
    )
    assert parse_program(listing) == one.program


class Pair:
    """A function of a pair, which gives one array."""

    def flatten(self, args, kwargs):
        if kwargs.keys() != {"scale"} or len(args) != 1 or not isinstance(args[0], tuple):
            return None
        x, y = args[0]
        return [x, kwargs["scale"] * y]

    def unflatten(self, results):
        return {"both": tuple(results)}

    def __str__(self):
        return "((x, y), scale=number)"


def test_a_signature_takes_and_gives_the_trees_of_a_function():
    class Compiled:
        data = neff().data
        signature = Pair()

    x = np.arange(24, dtype=np.float32).reshape(4, 2, 3)
    model = ncc_runtime.load(Compiled())
    both = model.run((x, x), scale=3, clock=False).result["both"]
    np.testing.assert_array_equal(both, [4 * x, -2 * x])
    for given in ([x, x], (x, x), {0: x, 1: x}, {"x": x, "arg1": x}):
        np.testing.assert_array_equal(model.run(given).result["both"], [2 * x, 0 * x])
    assert model.run(seed=1, values=False).result is None
    for args, kwargs in (((x, x), {}), (((x, x),), {"size": 1}), ((3,), {})):
        with pytest.raises(InputError, match=r"the function takes \(\(x, y\), scale=number\)"):
            model.run(*args, **kwargs)


def test_arrays_may_be_given_one_by_one():
    x = np.arange(24, dtype=np.float32).reshape(4, 2, 3)
    np.testing.assert_array_equal(run(neff(), x, x).outputs[0], 2 * x)
    with pytest.raises(InputError, match="no argument or option of a run is called scale"):
        ncc_runtime.load(neff()).run(x, x, scale=3)
