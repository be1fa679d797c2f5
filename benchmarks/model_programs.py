"""Steps of public model shapes as JAX functions, with their arguments as `from_jax` takes them.

Llama (grouped-query attention, rotary embedding, RMSNorm, SwiGLU): a decoding step, a prefill, the
forward and backward pass of a microbatch; tensor-parallel, with the residual stream cut by sequence
while training (Korthikanti et al., "Reducing activation recomputation in large transformer models",
2022). BERT: the forward and backward pass of a microbatch on one rank. Optimisers that all models
share: the gradients' reduction over data-parallel ranks, AdamW or LAMB in float32, cut over these
ranks (ZeRO-1: Rajbhandari et al., 2020) or not.

Heads, hidden units and words are padded to a multiple of the tensor-parallel ranks, and key heads
are repeated until every rank has one, as the vendor's serving library does.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

BF16, F32 = jnp.bfloat16, jnp.float32


@attrs.frozen
class Llama:
    """The sizes of a decoder."""

    layers: int
    width: int
    heads: int
    key_heads: int
    hidden: int
    words: int
    theta: float = 10000.0
    head_size: int = 0  # 0: width / heads

    def on(self, ranks: int) -> "Llama":
        """The sizes that this many tensor-parallel ranks divide."""
        up = functools.partial(_multiple, of=ranks)
        is_grouped = self.key_heads < self.heads
        heads = up(self.heads)
        return attrs.evolve(
            self,
            heads=heads,
            key_heads=max(self.key_heads, ranks) if is_grouped else heads,
            hidden=up(self.hidden),
            words=up(self.words),
            head_size=self.head_size or self.width // self.heads,
        )

    def weights(self) -> dict[str, tuple[tuple[int, ...], P]]:
        """Shapes and shardings of one layer."""
        queries, keys = self.heads * self.head_size, self.key_heads * self.head_size
        column, row = P(None, "tp"), P("tp", None)
        return {
            "q": ((self.width, queries), column),
            "k": ((self.width, keys), column),
            "v": ((self.width, keys), column),
            "o": ((queries, self.width), row),
            "gate": ((self.width, self.hidden), column),
            "up": ((self.width, self.hidden), column),
            "down": ((self.hidden, self.width), row),
            "norm1": ((self.width,), P()),
            "norm2": ((self.width,), P()),
        }

    def training_weights(self) -> dict[str, tuple[tuple[int, ...], P]]:
        """The same where the gate and what it gates are one product, as the library trains."""
        weights = self.weights()
        del weights["gate"], weights["up"]
        return {**weights, "gate_up": ((self.width, 2 * self.hidden), P(None, "tp"))}

    def ends(self) -> dict[str, tuple[tuple[int, ...], P]]:
        """Embedding, last norm and head."""
        return {
            "embedding": ((self.words, self.width), P("tp", None)),
            "norm": ((self.width,), P()),
            "head": ((self.width, self.words), P(None, "tp")),
        }


@attrs.frozen
class Bert:
    """The sizes of an encoder, with the heads of its pre-training."""

    layers: int
    width: int
    heads: int
    hidden: int
    words: int
    positions: int = 512

    def weights(self) -> dict[str, tuple[tuple[int, ...], P]]:
        """Shapes of one layer: attention, two norms, two products with biases."""
        width, hidden = self.width, self.hidden
        shapes = dict.fromkeys(("q", "k", "v", "o"), (width, width))
        shapes |= {f"{name}_bias": (width,) for name in ("q", "k", "v", "o")}
        shapes |= {"up": (width, hidden), "up_bias": (hidden,)}
        shapes |= {"down": (hidden, width), "down_bias": (width,)}
        shapes |= dict.fromkeys(("norm1", "bias1", "norm2", "bias2"), (width,))
        return {name: (shape, P()) for name, shape in shapes.items()}

    def ends(self) -> dict[str, tuple[tuple[int, ...], P]]:
        """Embeddings, the pooler and both heads; words are predicted by the embedding."""
        width = self.width
        shapes = {
            "embedding": (self.words, width),
            "positions": (self.positions, width),
            "types": (2, width),
            **dict.fromkeys(("norm", "bias", "head_norm", "head_norm_bias"), (width,)),
            "pooler": (width, width),
            "pooler_bias": (width,),
            "head": (width, width),
            "head_bias": (width,),
            "word_bias": (self.words,),
            "next": (width, 2),
            "next_bias": (2,),
        }
        return {name: (shape, P()) for name, shape in shapes.items()}


Sizes = Llama | Bert


@attrs.frozen
class Program:
    """A function and its arguments, as `from_jax` takes them."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]  # trees of jax.ShapeDtypeStruct
    options: Mapping[str, Any]  # mesh, shardings, donated arguments


EVEN = 4096
"""Elements that each rank's part of a bucket is a multiple of."""


def _multiple(size: int, of: int) -> int:
    return -(-size // of) * of


def _is_entry(item: object) -> bool:
    return isinstance(item, tuple)


def _tree(sizes: Sizes, layers: int) -> dict[str, Any]:
    return {**sizes.ends(), "layers": [sizes.weights() for _ in range(layers)]}


def _training_tree(sizes: Llama, layers: int) -> dict[str, Any]:
    return {**sizes.ends(), "layers": [sizes.training_weights() for _ in range(layers)]}


def _shapes(tree: Any, dtype: Any) -> Any:
    return jax.tree.map(lambda item: jax.ShapeDtypeStruct(item[0], dtype), tree, is_leaf=_is_entry)


def _specs(tree: Any) -> Any:
    return jax.tree.map(lambda item: item[1], tree, is_leaf=_is_entry)


# --- Llama ---------------------------------------------------------------------------------------


def _rms_norm(x: Any, scale: Any) -> Any:
    y = x.astype(F32)
    y = y * lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + 1e-5)
    return y.astype(x.dtype) * scale


def _rotary(x: Any, positions: Any, theta: float) -> Any:
    """Rotary embedding of [batch, tokens, heads, size], by halves."""
    half = x.shape[-1] // 2
    angle = positions[:, None].astype(F32) / theta ** (jnp.arange(half) / half)
    cosine, sine = (f(angle)[None, :, None].astype(x.dtype) for f in (jnp.cos, jnp.sin))
    left, right = x[..., :half], x[..., half:]
    return jnp.concatenate([left * cosine - right * sine, right * cosine + left * sine], -1)


def _attention(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """Grouped-query attention, softmax in float32: [batch, tokens, heads x size]."""
    batch, tokens, heads, size = q.shape
    groups = k.shape[2]
    q = q.reshape(batch, tokens, groups, heads // groups, size)
    scores = jnp.einsum("bnkgd,bskd->bkgns", q, k, preferred_element_type=F32)
    scores = jnp.where(mask, scores / np.sqrt(size), -1e9)
    shares = jax.nn.softmax(scores, -1).astype(v.dtype)
    return jnp.einsum("bkgns,bskd->bnkgd", shares, v).reshape(batch, tokens, heads * size)


def _projected(sizes: Llama, h: Any, w: Any, positions: Any) -> tuple[Any, Any, Any]:
    """Queries and keys, turned, and values: [batch, tokens, heads, size] of each."""

    def heads(y: Any) -> Any:
        return y.reshape(*y.shape[:2], -1, sizes.head_size)

    q, k = (_rotary(heads(h @ w[name]), positions, sizes.theta) for name in "qk")
    return q, k, heads(h @ w["v"])


def _mlp(h: Any, w: Any) -> Any:
    return (jax.nn.silu(h @ w["gate"]) * (h @ w["up"])) @ w["down"]


def _inference(sizes: Llama, layers: int, tp: int, batch: int, cache: int, tokens: int) -> Program:
    """A step that adds `tokens` to a cache; with more than one they are the first."""
    is_prefill = tokens > 1

    def layer(x: Any, w: Any, keys: Any, values: Any, positions: Any, at: Any) -> Any:
        q, k, v = _projected(sizes, _rms_norm(x, w["norm1"]), w, positions)
        keys = lax.dynamic_update_slice(keys, k, (0, at, 0, 0))
        values = lax.dynamic_update_slice(values, v, (0, at, 0, 0))
        if is_prefill:  # nothing is in the cache yet
            mask = positions[None, :] <= positions[:, None]
            mixed = _attention(q, k, v, mask)
        else:
            mask = jnp.arange(cache)[None, :] <= positions[:, None]
            mixed = _attention(q, keys, values, mask)
        x = x + mixed @ w["o"]
        return x + _mlp(_rms_norm(x, w["norm2"]), w), keys, values

    def step(weights: Any, caches: Any, words: Any, at: Any) -> Any:
        x, positions, written = weights["embedding"][words], at + jnp.arange(tokens), []
        for w, (keys, values) in zip(weights["layers"], caches, strict=True):
            x, keys, values = layer(x, w, keys, values, positions, at)
            written.append([keys, values])
        logits = _rms_norm(x[:, -1], weights["norm"]) @ weights["head"]
        return jnp.argmax(logits.astype(F32), -1), written

    tree = _tree(sizes, layers)
    entry = (batch, cache, sizes.key_heads, sizes.head_size), P(None, None, "tp", None)
    caches = [[entry, entry] for _ in range(layers)]
    word = jax.ShapeDtypeStruct((batch, tokens), jnp.int32)
    return Program(
        step,
        (_shapes(tree, BF16), _shapes(caches, BF16), word, jax.ShapeDtypeStruct((), jnp.int32)),
        {
            "mesh": {"tp": tp},
            "in_shardings": (_specs(tree), _specs(caches), P(), P()),
            "out_shardings": (P(), _specs(caches)),
            "donate_argnums": 1,
        },
    )


def decoding(sizes: Llama, layers: int, tp: int, batch: int, cache: int) -> Program:
    """A token for each sequence of the batch, with a cache of so many."""
    return _inference(sizes.on(tp), layers, tp, batch, cache, 1)


def prefill(sizes: Llama, layers: int, tp: int, batch: int, cache: int, tokens: int) -> Program:
    """The first tokens of each sequence, their keys and values into the cache, and one token."""
    return _inference(sizes.on(tp), layers, tp, batch, cache, tokens)


def _sequence_parallel_layer(sizes: Llama, x: Any, w: Any, positions: Any) -> Any:
    """A layer on one rank: [batch, tokens / ranks, width] in and out, whole tokens inside."""

    def gathered(y: Any) -> Any:
        return lax.all_gather(y, "tp", axis=1, tiled=True)

    def scattered(y: Any) -> Any:
        return lax.psum_scatter(y, "tp", scatter_dimension=1, tiled=True)

    q, k, v = _projected(sizes, gathered(_rms_norm(x, w["norm1"])), w, positions)
    # the library recomputes the core of the attention (selective checkpointing)
    mixed = jax.checkpoint(_attention)(q, k, v, positions[None, :] <= positions[:, None])
    x = x + scattered(mixed @ w["o"])
    gate, up = jnp.split(gathered(_rms_norm(x, w["norm2"])) @ w["gate_up"], 2, -1)
    return x + scattered((jax.nn.silu(gate) * up) @ w["down"])


def _llama_loss(sizes: Llama, weights: Any, words: Any) -> Any:
    """Cross entropy over words that ranks share, of [batch, tokens]; on one rank."""
    positions, rank = jnp.arange(words.shape[1]), lax.axis_index("tp")
    share = sizes.words // lax.axis_size("tp")

    def own(word: Any) -> tuple[Any, Any]:
        at = word - rank * share
        return jnp.clip(at, 0, share - 1), (at >= 0) & (at < share)

    at, is_own = own(words)
    x = jnp.where(is_own[..., None], weights["embedding"][at], 0)
    x = lax.psum_scatter(x, "tp", scatter_dimension=1, tiled=True)
    for w in weights["layers"]:
        x = _sequence_parallel_layer(sizes, x, w, positions)
    x = lax.all_gather(_rms_norm(x, weights["norm"]), "tp", axis=1, tiled=True)
    logits = (x @ weights["head"]).astype(F32)[:, :-1]
    largest = lax.pmax(lax.stop_gradient(jnp.max(logits, -1)), "tp")
    total = lax.psum(jnp.sum(jnp.exp(logits - largest[..., None]), -1), "tp")
    at, is_own = own(words[:, 1:])
    chosen = jnp.take_along_axis(logits, at[..., None], -1)[..., 0]
    chosen = lax.psum(jnp.where(is_own, chosen, 0), "tp")
    return jnp.mean(jnp.log(total) + largest - chosen)


def _accumulated(sums: Any, gradients: Any) -> Any:
    return jax.tree.map(lambda s, g: s + g.astype(s.dtype), sums, gradients)


def llama_microbatch(sizes: Llama, layers: int, tp: int, batch: int, tokens: int) -> Program:
    """Loss and gradients in bfloat16, added to those of microbatches before in float32."""
    sizes = sizes.on(tp)
    tree = _training_tree(sizes, layers)
    specs = _specs(tree)

    @functools.partial(jax.shard_map, in_specs=(specs, specs, P()), out_specs=(P(), specs))
    def step(weights: Any, sums: Any, words: Any) -> Any:
        loss, gradients = jax.value_and_grad(functools.partial(_llama_loss, sizes))(weights, words)
        return loss, _accumulated(sums, gradients)

    words = jax.ShapeDtypeStruct((batch, tokens), jnp.int32)
    return Program(
        step,
        (_shapes(tree, BF16), _shapes(tree, F32), words),
        {
            "mesh": {"tp": tp},
            "in_shardings": (specs, specs, P()),
            "out_shardings": (P(), specs),
            "donate_argnums": 1,
        },
    )


# --- BERT ----------------------------------------------------------------------------------------


def _layer_norm(x: Any, scale: Any, bias: Any) -> Any:
    y = x.astype(F32)
    y = y - jnp.mean(y, -1, keepdims=True)
    y = y * lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + 1e-12)
    return y.astype(x.dtype) * scale + bias


def _gelu(x: Any) -> Any:
    # Hugging Face's; jax.nn.gelu is a polynomial of erfc, 120 operations an element
    return 0.5 * x * (1 + lax.erf(x / np.sqrt(2).astype(x.dtype)))


DROPPED = 26
"""Of 256 elements that training of BERT drops: a tenth."""


class _Dropout:
    """Drops elements of what it is given, each time by further random bits of one generator."""

    def __init__(self, state: Any) -> None:
        self._state = state

    def __call__(self, x: Any) -> Any:
        """`x` with a tenth of its elements zero, the others larger in turn."""
        self._state, bits = lax.rng_bit_generator(self._state, x.shape, jnp.uint8)
        return jnp.where(bits >= DROPPED, x * (256 / (256 - DROPPED)), 0).astype(x.dtype)


def _linear(x: Any, w: Any, name: str, dtype: Any) -> Any:
    """A product and its bias in `dtype`, of operands of any type."""
    return x.astype(dtype) @ w[name].astype(dtype) + w[f"{name}_bias"].astype(dtype)


def _bert_layer(sizes: Bert, x: Any, w: Any, mask: Any, dropped: _Dropout, dtype: Any) -> Any:
    batch, tokens, width = x.shape
    size = width // sizes.heads

    def heads(name: str) -> Any:
        return _linear(x, w, name, dtype).reshape(batch, tokens, sizes.heads, size)

    scores = jnp.einsum("bnhd,bshd->bhns", heads("q"), heads("k")) / np.sqrt(size).astype(dtype)
    shares = dropped(jax.nn.softmax(scores + mask[:, None, None, :], -1)).astype(dtype)
    mixed = jnp.einsum("bhns,bshd->bnhd", shares, heads("v")).reshape(x.shape)
    x = _layer_norm(x + dropped(_linear(mixed, w, "o", dtype)), w["norm1"], w["bias1"])
    y = _linear(_gelu(_linear(x, w, "up", dtype)), w, "down", dtype)
    return _layer_norm(x + dropped(y), w["norm2"], w["bias2"])


def _cross_entropy(logits: Any, chosen: Any, weights: Any) -> Any:
    """The weighted mean, in float32."""
    logits = logits.astype(F32)
    of_chosen = jnp.take_along_axis(logits, chosen[..., None], -1)[..., 0]
    losses = jax.nn.logsumexp(logits, -1) - of_chosen
    return jnp.sum(losses * weights) / jnp.maximum(jnp.sum(weights), 1)


def _bert_loss(sizes: Bert, dtype: Any, weights: Any, batch: Any) -> Any:
    words, types, mask, labels, follows = (batch[name] for name in BERT_INPUTS)
    w, dropped = weights, _Dropout(batch["random"])
    x = w["embedding"][words] + w["types"][types] + w["positions"][: words.shape[1]]
    x = dropped(_layer_norm(x, w["norm"], w["bias"]))
    added = (1 - mask) * np.float32(-10000)
    for layer in w["layers"]:
        x = _bert_layer(sizes, x, layer, added, dropped, dtype)
    pooled = jnp.tanh(_linear(x[:, 0], w, "pooler", dtype))
    next_loss = _cross_entropy(_linear(pooled, w, "next", dtype), follows, jnp.ones(len(words)))
    y = _gelu(_linear(x, w, "head", dtype))
    y = _layer_norm(y.astype(F32), w["head_norm"], w["head_norm_bias"])
    decoder = {"word": w["embedding"].T, "word_bias": w["word_bias"]}
    logits = _linear(y, decoder, "word", dtype)
    is_masked = labels >= 0
    return next_loss + _cross_entropy(logits, jnp.maximum(labels, 0), is_masked.astype(F32))


BERT_INPUTS = ("words", "types", "mask", "labels", "follows")


def bert_microbatch(sizes: Bert, layers: int, batch: int, tokens: int, dtype: Any) -> Program:
    """Loss and gradients, added to those of microbatches before; weights and sums in float32.

    Products are in `dtype` and so is what is between them; norms, softmax, residual stream and
    losses are in float32, as torch.autocast has it (Autocast Op Reference of PyTorch's docs).
    Attention, its output, the MLP's and the embeddings drop a tenth, as Hugging Face's does.
    """
    tree = _tree(sizes, layers)
    loss_of = functools.partial(_bert_loss, sizes, dtype)

    def step(weights: Any, sums: Any, inputs: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(weights, inputs)
        return loss, _accumulated(sums, gradients)

    whole = jax.ShapeDtypeStruct((batch, tokens), jnp.int32)
    inputs = dict.fromkeys(BERT_INPUTS[:-1], whole)
    inputs["follows"] = jax.ShapeDtypeStruct((batch,), jnp.int32)
    inputs["random"] = jax.ShapeDtypeStruct((4,), jnp.uint32)  # a generator's state
    weights = _shapes(tree, F32)
    return Program(step, (weights, weights, inputs), {"donate_argnums": 1})


# --- updates -------------------------------------------------------------------------------------


def _adamw(weight: Any, gradient: Any, mean: Any, square: Any, rate: Any) -> tuple[Any, Any, Any]:
    """New weight and moments, all float32; the correction of the bias is in the rate."""
    mean = 0.9 * mean + 0.1 * gradient
    square = 0.999 * square + 0.001 * gradient * gradient
    change = mean / (jnp.sqrt(square) + 1e-8) + 0.01 * weight
    return weight - rate * change, mean, square


def _lamb(weight: Any, gradient: Any, mean: Any, square: Any, rate: Any) -> tuple[Any, Any, Any]:
    """The same with a trust ratio for each tensor (You et al., 2020)."""
    mean = 0.9 * mean + 0.1 * gradient
    square = 0.999 * square + 0.001 * gradient * gradient
    change = mean / (jnp.sqrt(square) + 1e-6) + 0.01 * weight
    norms = jnp.sqrt(jnp.sum(weight * weight)), jnp.sqrt(jnp.sum(change * change))
    ratio = jnp.where((norms[0] > 0) & (norms[1] > 0), norms[0] / norms[1], 1.0)
    return weight - rate * ratio * change, mean, square


RULES = {"AdamW": _adamw, "Lamb": _lamb}


def _clipping(gradients: Any, axes: tuple[str, ...]) -> Any:
    """What gradients are multiplied with so that their norm, over ranks that share it, is 1."""
    total = sum(jnp.sum(g * g) for g in jax.tree.leaves(gradients))
    return jnp.minimum(1.0, lax.rsqrt(lax.psum(total, axes) if axes else total))


def zero1_update(sizes: Llama, layers: int, dp: int, tp: int, rule: str) -> Program:
    """The update after the last microbatch, where each data-parallel rank has a part of the state.

    Gradients in float32 are reduced and scattered, their norm is clipped, weights and moments are
    float32, and the new weights are gathered in bfloat16.
    """
    tree = _training_tree(sizes.on(tp), layers)
    specs = _specs(tree)
    by_all = P(("dp", "tp"))
    local = jax.tree.map(lambda item: _local_size(item, tp), tree, is_leaf=_is_entry)
    parts = jax.tree.map(lambda size: _multiple(size, dp) // dp, local)
    state = jax.tree.map(lambda size: jax.ShapeDtypeStruct((size * dp * tp,), F32), parts)
    gradients = jax.tree.map(
        lambda item: jax.ShapeDtypeStruct((dp, *item[0]), F32), tree, is_leaf=_is_entry
    )
    gradient_specs = jax.tree.map(lambda spec: P("dp", *spec), specs)
    state_specs = jax.tree.map(lambda _: by_all, specs)

    def part_of(gradient: Any, size: int) -> Any:
        flat = gradient.reshape(-1)
        flat = jnp.pad(flat, (0, size * dp - flat.size))
        return lax.psum_scatter(flat, "dp", tiled=True) / dp

    in_specs = (gradient_specs, state_specs, state_specs, state_specs, P())
    out_specs = (specs, state_specs, state_specs, state_specs)

    @functools.partial(jax.shard_map, in_specs=in_specs, out_specs=out_specs, check_vma=False)
    def step(sums: Any, weights: Any, means: Any, squares: Any, rate: Any) -> Any:
        own = jax.tree.map(part_of, sums, parts)
        clipping = _clipping(own, ("dp", "tp"))
        new = jax.tree.map(
            lambda w, g, m, s: RULES[rule](w, g * clipping, m, s, rate),
            weights,
            own,
            means,
            squares,
        )
        weights, means, squares = _untupled(new)

        def whole(part: Any, gradient: Any) -> Any:
            flat = lax.all_gather(part.astype(BF16), "dp", tiled=True)
            shape = gradient.shape[1:]
            return flat[: np.prod(shape)].reshape(shape)

        return jax.tree.map(whole, weights, sums), weights, means, squares

    rate = jax.ShapeDtypeStruct((), F32)
    return Program(
        step,
        (gradients, state, state, state, rate),
        {
            "mesh": {"dp": dp, "tp": tp},
            "in_shardings": in_specs,
            "out_shardings": out_specs,
            "donate_argnums": (1, 2, 3),
        },
    )


def replicated_update(sizes: Bert, layers: int, dp: int, rule: str) -> Program:
    """The update after the last microbatch, where every data-parallel rank has the whole state.

    Gradients, weights and moments are float32.
    """
    tree = _tree(sizes, layers)
    specs = _specs(tree)
    by_data = jax.tree.map(lambda _: P("dp"), specs)
    gradients = jax.tree.map(
        lambda item: jax.ShapeDtypeStruct((dp, *item[0]), F32), tree, is_leaf=_is_entry
    )
    in_specs = (by_data, specs, specs, specs, P())
    out_specs = (specs, specs, specs)

    @functools.partial(jax.shard_map, in_specs=in_specs, out_specs=out_specs, check_vma=False)
    def step(sums: Any, weights: Any, means: Any, squares: Any, rate: Any) -> Any:
        mean = _mean_of_all(sums, dp)
        clipping = _clipping(mean, ())
        new = jax.tree.map(
            lambda w, g, m, s: RULES[rule](w, g * clipping, m, s, rate),
            *(weights, mean, means, squares),
        )
        return _untupled(new)

    state = _shapes(tree, F32)
    return Program(
        step,
        (gradients, state, state, state, jax.ShapeDtypeStruct((), F32)),
        {
            "mesh": {"dp": dp},
            "in_shardings": in_specs,
            "out_shardings": out_specs,
            "donate_argnums": (1, 2, 3),
        },
    )


def _mean_of_all(sums: Any, dp: int) -> Any:
    """Gradients as one bucket, padded so that it divides evenly, which is reduced at once."""
    leaves, tree = jax.tree.flatten(sums)
    ends = np.cumsum([leaf.size for leaf in leaves])
    missing = -int(ends[-1]) % (dp * EVEN)
    flat = [*(leaf.reshape(-1) for leaf in leaves), jnp.zeros(missing, leaves[0].dtype)]
    bucket = lax.psum(jnp.concatenate(flat), "dp") / dp
    parts = [
        lax.slice(bucket, (end - leaf.size,), (end,)).reshape(leaf.shape[1:])
        for leaf, end in zip(leaves, ends.tolist(), strict=True)
    ]
    return jax.tree.unflatten(tree, parts)


def _local_size(item: tuple[tuple[int, ...], P], tp: int) -> int:
    shape, spec = item
    return int(np.prod(shape)) // (tp if "tp" in tuple(spec) else 1)


def _untupled(tree: Any) -> tuple[Any, ...]:
    """A tree of triples as a triple of trees."""
    return tuple(
        jax.tree.map(lambda triple: triple[at], tree, is_leaf=_is_entry)  # noqa: B023
        for at in range(3)
    )
