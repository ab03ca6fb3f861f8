# SPDX-License-Identifier: Apache-2.0
"""
Make a context file: the KV cache of a real forward pass of a random-weight text model.

`transformers`' Qwen3-VL text model runs over a prompt-like sequence of random embeddings, with
image blocks whose tokens share rope positions, and leaves its keys (normed, rotated) and values.
What is real: the architecture, the rope and its image positions, the causal and padding masks,
the number of layers, key-value heads and head channels. What is not: weights and prompt are
random, and a text model wider than 512 channels is run at 512, since a 32 B model is none to draw.

Axes: S rows, left padding first.
"""

from argparse import ArgumentParser
from argparse import Namespace
from collections.abc import Callable
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import DynamicCache
from transformers import Qwen3VLTextConfig
from transformers import Qwen3VLTextModel

from alpamayo_node.contracts import ContextInfo
from alpamayo_node.contracts import ContextStatus
from alpamayo_node.contracts import KvShape
from alpamayo_node.contracts import Transport
from alpamayo_node.errors import ConfigError
from alpamayo_node.model.checkpoint import Checkpoint
from alpamayo_node.model.config import TextConfig
from alpamayo_node.model.context_file import write_context_file
from alpamayo_node.plan.motion import Motion
from alpamayo_node.plan.motion import MotionKind

MAX_HIDDEN = 512
IMAGE_GRID = (10, 18)
"""Rows and columns of one image's tokens, as the released model sees its cameras."""
PROMPT_FINGERPRINT = 'random-prompt'
HISTORY_RATE_HZ = 20.0

_STRAIGHT = Motion(MotionKind.STRAIGHT, 8.0)
_DTYPES = {'bfloat16': torch.bfloat16, 'float32': torch.float32}


@dataclass(frozen=True)
class ContextSpec:
    """What to make; rows, offset and padding as in `contracts.KvShape`."""

    n_rows: int = 320
    rope_delta: int = -172
    left_pad: int = 0
    dtype: str = 'bfloat16'
    seed: int = 0
    t0_ns: int = 1_700_000_000_000_000_000
    frame_id: str = 'map'
    motion: Motion = _STRAIGHT

    def __post_init__(self) -> None:
        if self.n_rows < 1:
            raise ConfigError('n_rows', self.n_rows, 'must be at least 1')
        if not 0 <= self.left_pad < self.n_rows:
            raise ConfigError('left_pad', self.left_pad, f'must be in [0, {self.n_rows})')
        if self.dtype not in _DTYPES:
            raise ConfigError('dtype', self.dtype, f'must be one of {", ".join(_DTYPES)}')
        if not 0 <= self.n_saved < self.n_rows - self.left_pad:
            low = 1 - self.n_rows
            rule = f'must be in [{low}, {-self.left_pad}] with {self.left_pad} rows of padding'
            raise ConfigError('rope_delta', self.rope_delta, rule)

    @property
    def n_saved(self) -> int:
        """Rope positions that image blocks occupy less than their tokens."""
        return -self.rope_delta - self.left_pad


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the command's arguments."""
    spec = ContextSpec()
    parser.add_argument('file', type=Path, metavar='FILE', help='to write, *.safetensors')
    parser.add_argument('--checkpoint', type=Path, required=True, metavar='DIR')
    parser.add_argument('--rows', type=int, default=spec.n_rows, help='S (default %(default)s)')
    parser.add_argument(
        '--rope-delta', type=int, default=spec.rope_delta, help='default %(default)s'
    )
    parser.add_argument('--left-pad', type=int, default=0, help='rows of padding (default 0)')
    parser.add_argument('--dtype', choices=tuple(_DTYPES), default=spec.dtype)
    parser.add_argument('--seed', type=int, default=0, help='of weights and prompt')
    parser.add_argument('--t0', type=int, default=spec.t0_ns, metavar='NS', help='stamp in ns')
    parser.add_argument('--frame', default=spec.frame_id, help='fixed frame (default map)')
    parser.add_argument(
        '--motion', choices=[kind.value for kind in MotionKind], default='straight'
    )
    parser.add_argument('--speed', type=float, default=8.0, metavar='MPS', help='default 8')
    parser.add_argument('--radius', type=float, default=50.0, metavar='M', help='of the circle')


def run(args: Namespace) -> int:
    """Make the file, telling each layer."""
    spec = ContextSpec(
        n_rows=args.rows,
        rope_delta=args.rope_delta,
        left_pad=args.left_pad,
        dtype=args.dtype,
        seed=args.seed,
        t0_ns=args.t0,
        frame_id=args.frame,
        motion=Motion(MotionKind(args.motion), args.speed, args.radius),
    )
    make_context(args.checkpoint, args.file, spec, print)
    return 0


def make_context(
    checkpoint_dir: Path, path: Path, spec: ContextSpec, report: Callable[[str], None]
) -> ContextInfo:
    """
    Run the text model and write what it leaves.

    :param checkpoint_dir: whose text model configuration and fingerprint are taken
    :param path: of the file
    :param report: receives progress in words
    :return: what the file says of itself
    :raises CheckpointError: the checkpoint cannot be used
    """
    checkpoint = Checkpoint.open(checkpoint_dir)
    fingerprint = checkpoint.fingerprint(lambda: False, report)
    text = checkpoint.config.vlm
    context = ContextInfo(
        context_id=path.stem,
        generation=1,
        t0_ns=spec.t0_ns,
        frame_id=spec.frame_id,
        status=ContextStatus.READY,
        transport=Transport.FILE,
        location=path.name,
        shape=KvShape(
            n_layers=text.n_layers,
            n_kv_heads=text.n_kv_heads,
            head_dim=text.head_dim,
            n_rows=spec.n_rows,
            left_pad=spec.left_pad,
            rope_delta=spec.rope_delta,
            dtype=spec.dtype,
        ),
        model_fingerprint=fingerprint,
        prompt_fingerprint=PROMPT_FINGERPRINT,
        digest='',
        seed=None,
        reasoning='Random weights say nothing; this text only travels along.',
        history=spec.motion.history(spec.t0_ns, spec.t0_ns, HISTORY_RATE_HZ),
    )
    write_context_file(path, context, _layers(text, spec, report))
    report(f'{path}: {spec.n_rows} rows, {text.n_layers} layers')
    return context


def positions_of(spec: ContextSpec) -> torch.Tensor:
    """
    Lay out rope positions: text counts up, an image spans a grid from one position on.

    As many images as the saved positions and the rows allow, then one block of tokens that share a
    position for the rest. Padding rows are at 0: they are masked.

    :return: (3, 1, S) int64: time, height and width
    """
    height, width = IMAGE_GRID
    saved_by_image = height * width - max(height, width)
    # Each position in use takes at least one token; an image uses as many as its longer side.
    n_positions = spec.n_rows - spec.left_pad - spec.n_saved
    n_images = min(spec.n_saved // saved_by_image, (n_positions - 1) // max(height, width))
    n_shared = spec.n_saved - n_images * saved_by_image
    columns = [torch.zeros(3, spec.left_pad, dtype=torch.int64)]
    start = 0
    for _ in range(n_images):
        rows = torch.arange(height).repeat_interleave(width)
        grid = torch.stack([torch.zeros_like(rows), rows, torch.arange(width).repeat(height)])
        columns.append(grid + start)
        start += max(height, width)
    if n_shared:
        columns.append(torch.full((3, n_shared + 1), start))
        start += 1
    n_text = spec.n_rows - sum(column.shape[1] for column in columns)
    columns.append(torch.arange(start, start + n_text).expand(3, n_text))
    return torch.cat(columns, dim=1)[:, None]


def text_model(text: TextConfig, seed: int) -> Qwen3VLTextModel:
    """
    Draw a text model whose cache has the extent of the given one's.

    :param seed: of the weights; torch's own generator is left as it was
    :return: float32, in evaluation mode
    """
    is_narrowed = text.hidden > MAX_HIDDEN
    config = Qwen3VLTextConfig(
        vocab_size=32,
        hidden_size=MAX_HIDDEN if is_narrowed else text.hidden,
        intermediate_size=2 * MAX_HIDDEN if is_narrowed else text.intermediate,
        num_hidden_layers=text.n_layers,
        num_attention_heads=text.n_kv_heads if is_narrowed else text.n_heads,
        num_key_value_heads=text.n_kv_heads,
        head_dim=text.head_dim,
        rms_norm_eps=text.rms_eps,
        max_position_embeddings=text.max_positions,
        initializer_range=(MAX_HIDDEN if is_narrowed else text.hidden) ** -0.5,
        rope_parameters={
            'rope_type': 'default',
            'rope_theta': text.rope_theta,
            'mrope_section': list(text.mrope_section),
            'mrope_interleaved': True,
        },
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen3VLTextModel(config).eval()


def embeddings_of(spec: ContextSpec, hidden: int) -> torch.Tensor:
    """Draw the prompt, (1, S, hidden) float32; another seed, another prompt."""
    generator = torch.Generator().manual_seed(spec.seed + 1)
    return torch.randn((1, spec.n_rows, hidden), generator=generator)


def _layers(
    text: TextConfig, spec: ContextSpec, report: Callable[[str], None]
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    model = text_model(text, spec.seed)
    model.to(_DTYPES[spec.dtype])
    cache = DynamicCache()
    is_visible = torch.ones((1, spec.n_rows), dtype=torch.int64)
    is_visible[:, : spec.left_pad] = 0
    report(f'running {text.n_layers} layers over {spec.n_rows} rows')
    with torch.inference_mode():
        model(
            inputs_embeds=embeddings_of(spec, model.config.hidden_size).to(model.dtype),
            position_ids=positions_of(spec),
            attention_mask=is_visible,
            cache=cache,
            use_cache=True,
        )
    for i_layer in range(text.n_layers):
        layer = cache.layers[i_layer]
        yield layer.keys[0], layer.values[0]
