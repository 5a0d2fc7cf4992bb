"""A language model in the manner of Llama (Touvron et al., arXiv 2302.13971).

Pre-norm blocks of causal self-attention with rotary position embeddings (Su et al., arXiv
2104.09864) and a SwiGLU MLP (Shazeer, arXiv 2002.05202), with RMSNorm (Zhang and Sennrich, arXiv
1910.07467), without biases, the output head not tied to the embedding. `llama_150m` has the sizes
of OpenDiLoCo's 150M model (arXiv 2407.07852): 149.4 M parameters without the embedding and the
head, which add 2 x 1024 for each word of the vocabulary.

Shapes: B sequences, T tokens, D hidden, H heads of K = D / H elements, V words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bsweep.config.models import LlamaConfig

if TYPE_CHECKING:
    from bsweep.models.plans import Plan

_ROTARY_BASE = 10_000.0
_INIT_STD = 0.02
_NORM_EPS = 1e-6


def build(config: LlamaConfig, *, num_classes: int, shape: tuple[int, ...]) -> Llama:
    return Llama(config, vocabulary_size=num_classes)


def tensor_plan(model: nn.Module) -> Plan:
    """Return the plan by which workers share heads, hidden values of the MLP, and words.

    As in Megatron-LM (Shoeybi et al., arXiv 1909.08053), a block sums over workers twice in either
    direction.
    """
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
    )

    from bsweep.models.plans import ColumnsOfEach

    same = Replicate()
    return {
        "embedding": RowwiseParallel(input_layouts=same),
        "blocks.*.attention.query_key_value": ColumnsOfEach(3),
        "blocks.*.attention.out": RowwiseParallel(),
        # Two layers have the same inputs, whose gradients are summed once.
        "blocks.*.mlp": PrepareModuleInput(input_layouts=same, desired_input_layouts=same),
        "blocks.*.mlp.gate": ColwiseParallel(),
        "blocks.*.mlp.up": ColwiseParallel(),
        "blocks.*.mlp.down": RowwiseParallel(),
        "head": ColwiseParallel(use_local_output=False),
    }


class Llama(nn.Module):
    def __init__(self, config: LlamaConfig, *, vocabulary_size: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary_size, config.hidden_size)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.norm = nn.RMSNorm(config.hidden_size, eps=_NORM_EPS)
        self.head = nn.Linear(config.hidden_size, vocabulary_size, bias=False)
        self.head_size = config.hidden_size // config.num_heads
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=_INIT_STD)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens, int64 (B, T), to the logits (B, T, V) of the token that follows each of
        them.
        """
        x = self.embedding(tokens)
        rotation = rotary_table(tokens.shape[1], self.head_size, like=x)
        for block in self.blocks:
            x = block(x, rotation)
        logits: Tensor = self.head(self.norm(x))
        return logits


class LoneBlock(nn.Module):
    """A transformer block that computes the table of the rotary embedding by itself."""

    def __init__(self, block: Block, head_size: int) -> None:
        super().__init__()
        self.block, self._head_size = block, head_size

    def forward(self, x: Tensor) -> Tensor:
        """Map the hidden states (B, T, D) before the block to those after it."""
        out: Tensor = self.block(x, rotary_table(x.shape[1], self._head_size, like=x))
        return out


def pieces(model: nn.Module) -> list[tuple[str, nn.Module]]:
    llama = cast(Llama, model)
    return [
        ("embedding", llama.embedding),
        *(
            (f"blocks.{name}", LoneBlock(cast(Block, block), llama.head_size))
            for name, block in llama.blocks.named_children()
        ),
        ("head", nn.Sequential(llama.norm, llama.head)),
    ]


class Block(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.hidden_size, eps=_NORM_EPS)
        self.attention = Attention(config)
        self.mlp_norm = nn.RMSNorm(config.hidden_size, eps=_NORM_EPS)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        """Map the hidden states (B, T, D) before this transformer block to those after the
        block.
        """
        x = x + self.attention(self.attention_norm(x), rotation)
        out: Tensor = x + self.mlp(self.mlp_norm(x))
        return out


class Attention(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self._head_size = config.hidden_size // config.num_heads
        self.query_key_value = nn.Linear(config.hidden_size, 3 * config.hidden_size, bias=False)
        self.out = nn.Linear(config.hidden_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        """Map hidden states (B, T, D) to new ones (B, T, D) by causal self-attention."""
        heads = self.query_key_value(x).unflatten(-1, (3, -1, self._head_size))  # (B, T, 3, H, K)
        query, key, value = heads.permute(2, 0, 3, 1, 4)  # (B, H, T, K) each
        mixed = F.scaled_dot_product_attention(
            rotate(query, rotation), rotate(key, rotation), value, is_causal=True
        )
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out


class MLP(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.gate = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map hidden states (B, T, D) to new ones (B, T, D), each token by itself."""
        out: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return out


def rotary_table(num_tokens: int, head_size: int, *, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return the cosine and the sine of the angles of the rotary position embedding, both (T, K /
    2) for T tokens and heads of K elements.

    At each position, each pair of a head's elements turns by one angle. The table is computed for
    each pass, with the type and on the device of `like`; a buffer would be averaged between
    workers. The angles are computed in float64 because they are as large as T.
    """
    pair = torch.arange(0, head_size, 2, dtype=torch.float64, device=like.device)
    position = torch.arange(num_tokens, dtype=torch.float64, device=like.device)
    angle = position[:, None] * _ROTARY_BASE ** (-pair / head_size)
    return angle.cos().to(like.dtype), angle.sin().to(like.dtype)


def rotate(heads: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate attention queries or keys (B, H, T, K) by the angles of their tokens' positions.

    The products of queries and keys then depend on positions only by their distance. Element i
    makes a pair with element i + K / 2, as in Hugging Face's Llama.
    """
    cos, sin = rotation
    first, second = heads.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).type_as(
        heads
    )
