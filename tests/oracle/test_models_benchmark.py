"""`benchmarks/models.py`: whole models from programs of few layers."""

import json
from pathlib import Path
from typing import Any

import pytest

import ncc_compiler
import ncc_runtime
from benchmarks import model_programs as programs
from benchmarks import models
from benchmarks.model_programs import Bert, Llama, Program

SMALL = Llama(4, 256, 8, 2, 512, 1000)
TINY_BERT = Bert(4, 128, 4, 256, 1000, 64)


def flops(program: Program, topology: str = "trn1", **place: Any) -> int:
    """Of all ranks, each product once."""
    neff = ncc_compiler.from_jax(program.function, *program.arguments, **program.options)
    model = ncc_runtime.load(neff, topology, times_only=True, **place)
    rates = model.run(values=False, verify=False).rates()
    assert rates is not None
    return rates.flops - rates.repeated_flops


def test_every_published_row_is_there_with_its_source() -> None:
    rows = models.rows_of()
    document = json.loads(models.PUBLISHED.read_text())
    counts = [sum(row.kind == kind for row in rows) for kind in models.KINDS]
    served, trained = len(document["decode"]), len(document["training"])
    assert counts == [served, served, trained]
    assert all(row.source.startswith("AWS Neuron SDK docs") for row in rows)
    assert len({(row.kind, row.name) for row in rows}) == len(rows)


def test_a_training_step_runs_its_microbatches_and_one_update() -> None:
    llama, *berts = (row for row in models.rows_of() if row.kind == models.TRAINING)
    assert [(phase.runs, phase.nodes) for phase in llama.phases] == [(32, 1), (1, 32)]
    assert llama.published_ms == pytest.approx(21_356, abs=1)
    # a global batch over ranks and a microbatch each
    runs = [row.phases[0].runs for row in berts]
    assert runs == [1048576 // (512 * 16), 1048576 // (512 * 8), 16384 // (32 * 16)]


def test_heads_hidden_units_and_words_are_padded_and_key_heads_repeated() -> None:
    padded = Llama(40, 5120, 40, 40, 13824, 32000).on(24)
    assert (padded.heads, padded.key_heads, padded.head_size) == (48, 48, 128)
    assert (padded.hidden, padded.words) == (13824, 32016)
    grouped = Llama(32, 4096, 32, 8, 14336, 128256).on(32)
    assert (grouped.heads, grouped.key_heads) == (32, 32)


def test_a_decoding_step_has_two_flops_a_weight_and_those_of_the_cache() -> None:
    sizes, tp, batch, cache = SMALL.on(4), 4, 3, 128
    step = flops(programs.decoding(SMALL, 2, tp, batch, cache))
    layer = sizes.width * sizes.head_size * (2 * sizes.heads + 2 * sizes.key_heads)
    layer += 3 * sizes.width * sizes.hidden
    attention = 2 * cache * sizes.heads * sizes.head_size
    expected = 2 * batch * (2 * (layer + attention) + sizes.width * sizes.words)
    assert step == expected


def test_a_microbatch_of_llama_has_about_six_flops_a_weight_and_token() -> None:
    """Kaplan et al., 2020: 2 forward and 4 backward, and attention on top."""
    sizes, tokens = SMALL.on(4), 256
    layer = sizes.width * sizes.head_size * (2 * sizes.heads + 2 * sizes.key_heads)
    layer += 3 * sizes.width * sizes.hidden
    attention = 2 * tokens * sizes.heads * sizes.head_size
    expected = 6 * tokens * (2 * (layer + attention) + sizes.width * sizes.words)
    assert flops(programs.llama_microbatch(SMALL, 2, 4, 1, tokens)) == expected


def test_a_microbatch_of_bert_has_about_six_flops_a_weight_and_token() -> None:
    width, batch, tokens = TINY_BERT.width, 2, 64
    layer = 4 * width**2 + 2 * width * TINY_BERT.hidden + 2 * tokens * width
    heads = width**2 + width * TINY_BERT.words
    expected = 6 * batch * tokens * (2 * layer + heads)
    step = flops(programs.bert_microbatch(TINY_BERT, 2, batch, tokens, programs.BF16))
    assert step == pytest.approx(expected, rel=0.01)  # the pooler's, of one token


def timed(program: Program, nodes: int = 1) -> Any:
    neff = ncc_compiler.from_jax(program.function, *program.arguments, **program.options)
    model = ncc_runtime.load(neff, "trn1", nodes=nodes, times_only=True)
    return model.run(values=False, verify=False)


def test_an_update_reduces_gradients_over_instances_and_gathers_weights() -> None:
    run = timed(programs.zero1_update(SMALL, 1, 2, 32, "AdamW"), nodes=2)
    ops = [row.op for row in run.collectives]
    assert {"reduce-scatter", "all-gather", "all-reduce"} == set(ops)
    assert all(row.group_size == 2 for row in run.collectives if row.op != "all-reduce")


def test_an_update_of_whole_weights_reduces_one_bucket() -> None:
    run = timed(programs.replicated_update(TINY_BERT, 1, 4, "Lamb"))
    assert [(row.op, row.group_size) for row in run.collectives] == [("all-reduce", 4)]


def row_of_small() -> models.Row:
    phase = models.Phase("step", 1, lambda layers: programs.decoding(SMALL, layers, 4, 1, 64))
    source = "no one"
    return models.Row(models.TOKEN, "small", "trn1.32xlarge", 12, 0.5, "1 tokens", (phase,), source)


def test_the_time_of_all_layers_is_on_the_line_through_two(tmp_path: Path) -> None:
    row = row_of_small()
    timer = models.Timer(cache=tmp_path)
    found = models.predicted(row, timer, (2, 3), is_checked=True)
    assert found.off_the_line is not None
    assert found.off_the_line < 0.02
    low, high = (timer.timed(row, row.phases[0], layers).time_ms for layers in (2, 3))
    assert found.time_ms == pytest.approx(low + 10 * (high - low))
    assert len(list(tmp_path.iterdir())) == 3  # of 2, 3 and 4 layers
    assert sum(found.spent_ms.values()) >= 0.9 * found.time_ms  # engines work side by side


def test_the_table_has_each_row_and_a_summary_of_its_kind() -> None:
    found = models.Predicted(row_of_small(), 0.55, {"dot": 0.5, "idle": 0.05}, 0.001, 1.0)
    lines = list(models.table_lines([found]))
    assert lines[1].split()[0] == "small"
    assert lines[1].endswith("1.10  0.10 % off the line")
    assert lines[2].endswith("10.0 %, +10.0 %")
    assert list(models.where_lines(found))[1].split() == ["90.9%", "0.500", "ms", "dot"]
