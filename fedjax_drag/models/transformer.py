"""Transformer decoder for next tokens, and the block that it shares with the vision transformer."""

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int

from fedjax_drag import checks

Initializer = nn.initializers.Initializer

SCANNED = "blocks"
"""Name of the parameters of all blocks, stacked, where one loop goes over them."""

_OF_BLOCK = (
    ("(query|key|value|mlp_in)/kernel$", PartitionSpec(None, "model")),
    ("(query|key|value|mlp_in)/bias$", PartitionSpec("model")),
    ("(out|mlp_out)/kernel$", PartitionSpec("model", None)),
)
BLOCK_SHARDING = (
    *((f"{SCANNED}/{path}", PartitionSpec(None, *spec)) for path, spec in _OF_BLOCK),
    *_OF_BLOCK,
    # Divided, they would divide the states, which every layer would gather.
    ("(positions|patches/kernel)$", PartitionSpec()),
)
"""How an axis ``"model"`` of a mesh divides a :class:`Block`: heads, and the inner states of the perceptron. Each
device computes its share of them by itself, and the devices add up what leaves the two (Shoeybi et al., Megatron-LM:
Training multi-billion parameter language models using model parallelism, 2019, Section 3)."""


class Size(NamedTuple):
    """Of a transformer: blocks, heads of each, and width."""

    layers: int
    heads: int
    width: int


SIZES = {
    "gpt2": Size(12, 12, 768),
    "gpt2-medium": Size(24, 16, 1024),
    "gpt2-large": Size(36, 20, 1280),
    "gpt2-xl": Size(48, 25, 1600),
}
"""Published decoders (Radford et al., 2019)."""


class Block(nn.Module):
    """Self-attention and a perceptron of four times the width, each behind a layer norm and added to its input.

    Attributes:
      heads: of the attention; divides the width.
      is_causal: whether a position attends to itself and those before it only.
      epsilon: of the layer norms.
      kernel_init: of the dense layers.
    """

    heads: int
    is_causal: bool
    epsilon: float = 1e-5
    kernel_init: Initializer = nn.initializers.normal(0.02)

    @nn.compact
    def __call__(self, x: Float[Array, "batch length width"]) -> Float[Array, "batch length width"]:
        """Maps each position's state to its next."""
        width = x.shape[-1]
        dense = lambda features, name: nn.Dense(features, kernel_init=self.kernel_init, name=name)
        by_head = lambda state: state.reshape(*state.shape[:-1], self.heads, width // self.heads)
        state = nn.LayerNorm(self.epsilon)(x)
        query, key, value = (by_head(dense(width, name)(state)) for name in ("query", "key", "value"))
        attended = jax.nn.dot_product_attention(query, key, value, is_causal=self.is_causal)
        x = x + dense(width, "out")(attended.reshape(x.shape))
        state = nn.gelu(dense(4 * width, "mlp_in")(nn.LayerNorm(self.epsilon)(x)))
        return x + dense(width, "mlp_out")(state)


def through_blocks(
    x: Float[Array, "batch length width"], size: Size, scan_layers: bool, **block: Any
) -> Float[Array, "batch length width"]:
    """States after all blocks of the module that calls it.

    Args:
      x: before them.
      size: of the blocks.
      scan_layers: whether one loop goes over them; their parameters then have a leading axis of layers.
      **block: the other attributes of :class:`Block`.
    """
    if scan_layers:
        step = lambda block, x, _: (block(x), None)
        scan = nn.scan(step, variable_axes={"params": 0}, split_rngs={"params": True}, length=size.layers)
        return scan(Block(size.heads, **block, name=SCANNED), x, None)[0]
    for _ in range(size.layers):
        x = Block(size.heads, **block)(x)
    return x


class Transformer(nn.Module):
    """Decoder of GPT-2, without dropout: learned positions, and one matrix for tokens in and out.

    Attributes:
      num_classes: number of tokens.
      size: of the blocks.
      max_length: of a text.
      return_sequences: whether there are logits for each position or for the last only.
      scan_layers: whether one loop goes over the blocks.
    """

    sharding_rules: ClassVar = BLOCK_SHARDING

    num_classes: int
    size: Size
    max_length: int
    return_sequences: bool
    scan_layers: bool = False

    @nn.compact
    def __call__(self, tokens: Int[Array, "batch length"]) -> Float[Array, "batch *length classes"]:
        """Maps tokens to logits of the next ones."""
        if tokens.ndim != 2 or not jnp.issubdtype(tokens.dtype, jnp.integer):
            shape, dtype = tokens.shape, tokens.dtype
            raise ValueError(f"x.shape={shape}, x.dtype={dtype}: this transformer needs integer tokens [B, L]")
        if tokens.shape[-1] > self.max_length:
            raise ValueError(f"max_length={self.max_length}: the texts have {tokens.shape[-1]} tokens; must be as many")
        small = nn.initializers.normal(0.02)
        embedding = nn.Embed(self.num_classes, self.size.width, embedding_init=small, name="tokens")
        positions = self.param("positions", nn.initializers.normal(0.01), (self.max_length, self.size.width))
        x = embedding(tokens) + positions[: tokens.shape[-1]]
        x = through_blocks(x, self.size, self.scan_layers, is_causal=True)
        if not self.return_sequences:
            x = x[:, -1]
        return embedding.attend(nn.LayerNorm(1e-5)(x))


def transformer(
    num_classes: int,
    size: str | None = None,
    layers: int = 2,
    heads: int = 4,
    width: int = 128,
    max_length: int = 1024,
    return_sequences: bool = False,
    scan_layers: bool = False,
) -> Transformer:
    """Builds a transformer decoder that predicts next tokens, GPT-2 without its dropout.

    Args:
      num_classes: number of tokens, at least 1; ``"gpt2"`` with 50,257 has 124,439,808 parameters.
      size: ``"gpt2"``, ``"gpt2-medium"``, ``"gpt2-large"`` or ``"gpt2-xl"``: layers, heads and width of these; default
        the next three.
      layers: blocks, at least 1.
      heads: of each block's attention; must divide ``width``.
      width: of the states.
      max_length: most tokens of a text.
      return_sequences: True for logits at each position, ``[B, L, C]``, as for targets ``[B, L]``; False for those
        after the last only, ``[B, C]``.
      scan_layers: True for one loop over the blocks, which compiles in the time of one block: for deep models. The
        parameters of ``Block_0``, ``Block_1`` and so on are then those of ``blocks``, stacked.

    Returns:
      A Flax module: tokens ``[B, L]`` to logits.

    Raises:
      ValueError: if a count is not a positive integer, ``heads`` does not divide ``width``, or ``size`` is not allowed.

    References:
      Vaswani et al., Attention is all you need, NeurIPS 2017. Radford et al., Language models are unsupervised
      multitask learners, 2019 (GPT-2).

    Examples:
      >>> model = transformer(num_classes=80, layers=2, width=64)
    """
    shape = size_of(size, SIZES, Size(layers, heads, width))
    checks.count("num_classes", num_classes, 1)
    checks.count("max_length", max_length, 1)
    return Transformer(num_classes, shape, max_length, bool(return_sequences), bool(scan_layers))


def size_of(name: str | None, published: Mapping[str, Size], otherwise: Size) -> Size:
    """A published size, or another one where there is no name; ValueError for what makes no transformer."""
    if name is not None:
        checks.one_of("size", name, published)
    size = otherwise if name is None else published[name]
    for argument, value in size._asdict().items():
        checks.count(argument, value, 1)
    if size.width % size.heads:
        raise checks.ArgumentError("heads", f"must divide width={size.width}", given=size.heads)
    return size
