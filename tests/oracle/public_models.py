"""Models that others published, small: a forward pass and a training step of each.

transformers' Flax models, a Flax module and an Equinox one, with optimisers of optax, over a mesh
of data x tensor parallel devices: weights are cut as Megatron-LM does, the batch over `data`.
"""

import functools
import re
import warnings
from collections.abc import Callable
from typing import Any

import attrs
import equinox
import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import PartitionSpec

AXES = {"data": 2, "model": 4}
"""The mesh: 8 devices."""

VOCABULARY, TOKENS, BATCH = 256, 32, 8

SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 8}
"""What most configurations of transformers call alike."""


@attrs.frozen
class PublicModel:
    """A function of parameters and a batch, with both and how they are partitioned."""

    forward: Callable[[Any, Any], Any]
    parameters: Any
    batch: Any
    optimiser: optax.GradientTransformation

    def parameter_specs(self) -> Any:
        return jax.tree_util.tree_map_with_path(_spec, self.parameters)

    def batch_specs(self) -> Any:
        return jax.tree.map(lambda _: PartitionSpec("data"), self.batch)

    def state_specs(self) -> Any:
        """As the parameters that the optimiser's state is of, where it has their rank."""
        return optax.tree_utils.tree_map_params(
            self.optimiser,
            lambda leaf, spec: spec if np.ndim(leaf) >= len(spec) else PartitionSpec(),
            self.optimiser.init(self.parameters),
            self.parameter_specs(),
            transform_non_params=lambda _: PartitionSpec(),
        )

    def loss(self, parameters: Any, batch: Any) -> Any:
        """Cross entropy of the logits and the batch's targets."""
        logits = self.forward(parameters, batch).astype(jnp.float32)
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["targets"]).mean()

    def step(self, parameters: Any, state: Any, batch: Any) -> tuple[Any, Any, Any]:
        """One training step: loss, new parameters, new state of the optimiser."""
        loss, gradients = jax.value_and_grad(self.loss)(parameters, batch)
        updates, state = self.optimiser.update(gradients, state, parameters)
        return loss, optax.apply_updates(parameters, updates), state


_COLUMNS = re.compile(
    r"\b(query|key|value|q|k|v|[qkv]_proj|query_proj|key_proj|value_proj"
    r"|c_fc|c_attn|fc1|intermediate|gate_proj|up_proj|wi|wi_0)\b"
)
_ROWS = re.compile(r"\b(c_proj|fc2|out_proj|output_proj|o_proj|down_proj|o|wo|output)\b")
_EPSILON = 1e-4
"""Of optimisers that divide by a gradient's size. A gradient that is zero but for rounding, as that
of a key's bias is, would give steps that differ wherever sums are ordered otherwise."""


def _spec(path: Any, leaf: Any) -> PartitionSpec:
    """Columns of the first matrix of a block over `model`, rows of the second; the rest whole."""
    names = [str(getattr(key, "key", getattr(key, "name", key))) for key in path]
    name, rank = " ".join(names), np.ndim(leaf)
    first, second = (None, "model"), ("model", None)
    if names[-1] == "weight":  # Equinox has outputs first
        first, second = second, first
    spec = PartitionSpec(*(second if _ROWS.search(name) else first))
    if rank != 2 or not (_ROWS.search(name) or _COLUMNS.search(name)):
        return PartitionSpec()
    cut = np.shape(leaf)[tuple(spec).index("model")]
    return spec if not cut % AXES["model"] else PartitionSpec()


def _tokens(seed: int, shape: tuple[int, ...] = (BATCH, TOKENS)) -> np.ndarray:
    drawn = np.random.default_rng(seed).integers(3, VOCABULARY, shape)
    return drawn.astype(np.int32)


def _transformers(kind: str, config: str, **settings: Any) -> Any:
    """One of transformers' Flax models with random weights."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on Flax's future in transformers
        import transformers

        _accept_a_max()
        made = getattr(transformers, config)(**settings)
        return getattr(transformers, kind)(made, seed=0)


def _accept_a_max() -> None:
    """T5's code calls `jnp.clip` with a name of an argument that JAX has given up."""
    if getattr(jnp.clip, "accepts_a_max", False):
        return
    clip = jnp.clip

    @functools.wraps(clip)
    def accepting(array: Any, *bounds: Any, a_max: Any = None, **named: Any) -> Any:
        return clip(array, *bounds, **({"max": a_max} if a_max is not None else {}), **named)

    accepting.accepts_a_max = True  # type: ignore[attr-defined]
    jnp.clip = accepting


def _language_model(
    kind: str, config: str, optimiser: optax.GradientTransformation, **settings: Any
) -> PublicModel:
    model = _transformers(kind, config, vocab_size=VOCABULARY, **settings)

    def forward(parameters: Any, batch: Any) -> Any:
        return model(batch["tokens"], params=parameters, train=False).logits

    batch = {"tokens": _tokens(0), "targets": _tokens(1)}
    return PublicModel(forward, model.params, batch, optimiser)


def gpt2() -> PublicModel:
    return _language_model(
        "FlaxGPT2LMHeadModel",
        "GPT2Config",
        optax.adamw(1e-3, eps=_EPSILON),
        n_embd=64,
        n_layer=2,
        n_head=8,
        n_positions=TOKENS,
    )


def llama() -> PublicModel:
    sizes = {**SIZES, "intermediate_size": 128, "max_position_embeddings": TOKENS}
    return _language_model("FlaxLlamaForCausalLM", "LlamaConfig", optax.adafactor(1e-3), **sizes)


def mistral() -> PublicModel:
    sizes = {**SIZES, "intermediate_size": 128, "max_position_embeddings": TOKENS}
    optimiser = optax.chain(optax.clip_by_global_norm(1.0), optax.rmsprop(1e-3, eps=_EPSILON))
    return _language_model(
        "FlaxMistralForCausalLM", "MistralConfig", optimiser, num_key_value_heads=4, **sizes
    )


def bert() -> PublicModel:
    sizes = {**SIZES, "intermediate_size": 128, "max_position_embeddings": TOKENS}
    return _language_model(
        "FlaxBertForMaskedLM", "BertConfig", optax.lamb(1e-3, eps=_EPSILON), **sizes
    )


def roberta() -> PublicModel:
    sizes = {**SIZES, "intermediate_size": 128, "max_position_embeddings": TOKENS + 8}
    return _language_model(
        "FlaxRobertaForMaskedLM",
        "RobertaConfig",
        optax.adam(1e-3, eps=_EPSILON),
        pad_token_id=1,
        **sizes,
    )


def _translator(
    kind: str, config: str, optimiser: optax.GradientTransformation, **settings: Any
) -> PublicModel:
    model = _transformers(
        kind,
        config,
        vocab_size=VOCABULARY,
        pad_token_id=0,
        decoder_start_token_id=1,
        **settings,
    )

    def forward(parameters: Any, batch: Any) -> Any:
        read, written = batch["tokens"], batch["decoded"]
        return model(read, decoder_input_ids=written, params=parameters, train=False).logits

    batch = {"tokens": _tokens(0), "decoded": _tokens(1), "targets": _tokens(2)}
    return PublicModel(forward, model.params, batch, optimiser)


def t5() -> PublicModel:
    return _translator(
        "FlaxT5ForConditionalGeneration",
        "T5Config",
        optax.adafactor(1e-3),
        d_model=64,
        d_ff=128,
        d_kv=8,
        num_layers=2,
        num_heads=8,
    )


def bart() -> PublicModel:
    return _translator(
        "FlaxBartForConditionalGeneration",
        "BartConfig",
        optax.sgd(1e-2, momentum=0.9, nesterov=True),
        d_model=64,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=8,
        decoder_attention_heads=8,
        encoder_ffn_dim=128,
        decoder_ffn_dim=128,
        max_position_embeddings=TOKENS,
    )


def whisper() -> PublicModel:
    model = _transformers(
        "FlaxWhisperForConditionalGeneration",
        "WhisperConfig",
        vocab_size=VOCABULARY,
        d_model=64,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=8,
        decoder_attention_heads=8,
        encoder_ffn_dim=128,
        decoder_ffn_dim=128,
        num_mel_bins=16,
        max_source_positions=32,
        max_target_positions=TOKENS,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )

    def forward(parameters: Any, batch: Any) -> Any:
        return model(
            batch["sound"], decoder_input_ids=batch["decoded"], params=parameters, train=False
        ).logits

    sound = np.random.default_rng(0).standard_normal((BATCH, 16, 64), np.float32)
    batch = {"sound": sound, "decoded": _tokens(1), "targets": _tokens(2)}
    return PublicModel(forward, model.params, batch, optax.adamw(1e-3, eps=_EPSILON))


def vit() -> PublicModel:
    model = _transformers(
        "FlaxViTForImageClassification",
        "ViTConfig",
        **SIZES,
        intermediate_size=128,
        image_size=32,
        patch_size=8,
        num_labels=16,
    )

    def forward(parameters: Any, batch: Any) -> Any:
        return model(batch["pixels"], params=parameters, train=False).logits

    pixels = np.random.default_rng(0).standard_normal((BATCH, 3, 32, 32), np.float32)
    batch = {"pixels": pixels, "targets": _tokens(0, (BATCH,)) % 16}
    return PublicModel(forward, model.params, batch, optax.sgd(1e-2, momentum=0.9))


def equinox_transformer() -> PublicModel:
    """Equinox's own layers: embedding, attention, norms, MLP."""
    keys = jax.random.split(jax.random.key(0), 4)
    blocks = {
        "embedding": equinox.nn.Embedding(VOCABULARY, 64, key=keys[0]),
        "attention": equinox.nn.MultiheadAttention(8, 64, key=keys[1]),
        "norm": equinox.nn.LayerNorm(64),
        "mlp": equinox.nn.MLP(64, 64, 128, 2, activation=jax.nn.gelu, key=keys[2]),
        "head": equinox.nn.Linear(64, VOCABULARY, key=keys[3]),
    }
    parameters, rest = equinox.partition(blocks, equinox.is_inexact_array)

    def sentence(layers: Any, tokens: Any) -> Any:
        hidden = jax.vmap(layers["embedding"])(tokens)
        causal = jnp.tril(jnp.ones((TOKENS, TOKENS), bool))
        hidden = hidden + layers["attention"](hidden, hidden, hidden, mask=causal)
        hidden = hidden + jax.vmap(layers["mlp"])(jax.vmap(layers["norm"])(hidden))
        return jax.vmap(layers["head"])(hidden)

    def forward(parameters: Any, batch: Any) -> Any:
        layers = equinox.combine(parameters, rest)
        return jax.vmap(lambda tokens: sentence(layers, tokens))(batch["tokens"])

    batch = {"tokens": _tokens(0), "targets": _tokens(1)}
    return PublicModel(forward, parameters, batch, optax.adamw(1e-3, eps=_EPSILON))


class ResidualNetwork(flax.linen.Module):
    """Convolutions with group norms in residual blocks, of Flax's layers."""

    @flax.linen.compact
    def __call__(self, images: Any) -> Any:
        hidden = flax.linen.Conv(16, (3, 3))(images)
        for stride in (1, 2):
            kept = flax.linen.Conv(16, (1, 1), (stride, stride))(hidden)
            hidden = flax.linen.relu(flax.linen.GroupNorm(4)(hidden))
            hidden = flax.linen.Conv(16, (3, 3), (stride, stride))(hidden) + kept
        return flax.linen.Dense(16)(flax.linen.avg_pool(hidden, (4, 4), (4, 4)).mean((1, 2)))


def residual_network() -> PublicModel:
    module = ResidualNetwork()
    images = np.random.default_rng(0).standard_normal((BATCH, 16, 16, 3), np.float32)
    parameters = module.init(jax.random.key(0), images)

    def forward(parameters: Any, batch: Any) -> Any:
        return module.apply(parameters, batch["images"])

    batch = {"images": images, "targets": _tokens(0, (BATCH,)) % 16}
    return PublicModel(forward, parameters, batch, optax.sgd(1e-2, momentum=0.9))


MODELS: dict[str, Callable[[], PublicModel]] = {
    make.__name__: make
    for make in (
        gpt2,
        bert,
        t5,
        llama,
        vit,
        whisper,
        mistral,
        roberta,
        bart,
        equinox_transformer,
        residual_network,
    )
}
