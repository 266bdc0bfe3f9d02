"""One layer of a Llama-like decoder for one new token a sequence, and the same layer in fp64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from capplan.probes import paged
from capplan.probes.attention import attention64

if TYPE_CHECKING:
    from torch import Tensor

EPS, THETA = 1e-5, 5e5  # of the norms and of the turning; Llama-3's


class Shape(NamedTuple):
    """Dimensions of a layer."""

    hidden: int
    inner: int
    heads: int
    kv_heads: int
    width: int

    @property
    def parameters(self) -> int:
        """Numbers in its four matrices."""
        attention = self.hidden * self.width * (2 * self.heads + 2 * self.kv_heads)
        return attention + 3 * self.hidden * self.inner


class Layer(NamedTuple):
    """Weights as they are stored, [outputs, inputs]; the norms' are 1."""

    qkv: Tensor
    o: Tensor
    gate_up: Tensor
    down: Tensor


def made(shape: Shape, make: Callable[[tuple[int, int]], Tensor]) -> Layer:
    """A layer of random weights that keep the size of what goes through them. make: normal numbers of a shape."""
    h, w = shape.hidden, shape.width
    sizes = (
        ((shape.heads + 2 * shape.kv_heads) * w, h),
        (h, shape.heads * w),
        (2 * shape.inner, h),
        (h, shape.inner),
    )
    return Layer(*(make(size).mul_(size[1] ** -0.5) for size in sizes))


def step(x: Tensor, layer: Layer, q: Tensor, cache: paged.Cache, attend: Callable[[], Tensor]) -> Tensor:
    """The layer's output [sequence, hidden] for x [sequence, hidden], the last tokens, whose K and V go into the cache.

    q: where `attend` finds its queries, [sequence, head, width]. cache.lengths count the new token.
    """
    import torch
    from torch.nn.functional import linear, rms_norm, silu

    heads, kv_heads = q.shape[1], cache.k.shape[2]
    mixed = linear(rms_norm(x, x.shape[-1:], eps=EPS), layer.qkv).unflatten(1, (-1, q.shape[2]))
    asked, k, v = mixed.split([heads, kv_heads, kv_heads], dim=1)
    position = cache.lengths.long() - 1
    q.copy_(rope(asked, position))
    paged.write(cache, rope(k, position), v, torch.arange(x.shape[0], device=x.device), position)
    x = x + linear(attend().flatten(1), layer.o)
    gate, up = linear(rms_norm(x, x.shape[-1:], eps=EPS), layer.gate_up).chunk(2, dim=1)
    return x + linear(silu(gate) * up, layer.down)


def rope(x: Tensor, position: Tensor) -> Tensor:
    """Pairs (i, i + width / 2) of x [token, head, width] turned by position * THETA^(-2 i / width)."""
    import torch

    half, wide = x.shape[-1] // 2, torch.float64 if x.dtype == torch.float64 else torch.float32
    rate = THETA ** -(torch.arange(half, device=x.device, dtype=wide) / half)
    angle = (position.to(wide)[:, None] * rate)[:, None]
    a, b = x.to(wide).split(half, dim=-1)
    return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1).to(x.dtype)


def added64(x: Tensor, layer: Layer, shape: Shape, k: Tensor, v: Tensor, lengths: Sequence[int]) -> Tensor:
    """What the layer adds to x [sequence, hidden] in fp64, given K and V of the tokens before, without pages.

    k and v: [token, KV head, width] of one sequence after the other, lengths[i] - 1 tokens each.
    """
    import torch

    qkv, o, gate_up, down = (weight.double() for weight in layer)
    sizes = [shape.heads, shape.kv_heads, shape.kv_heads]
    asked, keys, values = (_normed(x.double()) @ qkv.t()).unflatten(1, (-1, shape.width)).split(sizes, dim=1)
    out, start = [], 0
    for i, length in enumerate(lengths):
        before = slice(start, start := start + length - 1)
        pairs = torch.arange(shape.width // 2, device=x.device, dtype=torch.float64)
        turn = torch.polar(torch.ones_like(pairs), (length - 1) * THETA ** (-2 * pairs / shape.width))
        turned = [_turned(each[i : i + 1], turn) for each in (asked, keys)]
        seen_k, seen_v = (
            torch.cat([k[before].double(), turned[1]]),
            torch.cat([v[before].double(), values[i : i + 1]]),
        )
        out.append(attention64(turned[0], seen_k, seen_v, torch.tensor([length - 1]), shape.width**-0.5))
    middle = torch.cat(out).flatten(1) @ o.t()
    gate, up = (_normed(x.double() + middle) @ gate_up.t()).chunk(2, dim=1)
    return middle + (gate / (1.0 + torch.exp(-gate)) * up) @ down.t()


def _normed(x: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + EPS).sqrt()


def _turned(x: Tensor, turn: Tensor) -> Tensor:
    """rope() as a product of complex numbers: another way to the same, so that a fault is not in both."""
    import torch

    a, b = x.chunk(2, dim=-1)
    both = torch.complex(a, b) * turn
    return torch.cat([both.real, both.imag], -1)
