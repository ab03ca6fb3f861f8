# SPDX-License-Identifier: Apache-2.0
"""
The part of ttnn that the chip's backend uses, on emulated memory, with the device's rounding.

What each op accepts, and the shape and format of what it gives, is held against the real library
by `tests/chip/test_op_answers.py`.
"""

from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
import sys
from types import ModuleType
from types import SimpleNamespace
from typing import Any

import torch
from torch.nn import functional as F

from tests.emulation.block_float import round_to
from tests.emulation.device import N_BANKS
from tests.emulation.device import Device
from tests.emulation.tensor import TILE
from tests.emulation.tensor import TILE_LAYOUT
from tests.emulation.tensor import DataType
from tests.emulation.tensor import Layout
from tests.emulation.tensor import Slot
from tests.emulation.tensor import Tensor

BFLOAT16 = DataType('BFLOAT16')


class Config(SimpleNamespace):
    """A program or kernel configuration: whatever it is given, comparable by its text."""


def fatal(is_right: bool, text: str) -> None:
    if not is_right:
        raise RuntimeError(f'TT_FATAL: {text}')


def from_torch(
    values: torch.Tensor,
    *,
    dtype: DataType,
    layout: Layout,
    device: Device | None = None,
    memory_config: object = None,
) -> Tensor:
    fatal(layout == TILE_LAYOUT, 'only tiles are emulated')
    host = Tensor.on_host(values, dtype)
    return host if device is None else to_device(host, device, memory_config=memory_config)


def to_device(host: Tensor, device: Device, *, memory_config: object) -> Tensor:
    device.require_host_access('a write')
    tensor = Tensor.on_device(device, host.shape, host.dtype)
    tensor.reader().write_tiles(host.host)
    return tensor


def copy_host_to_device_tensor(host: Tensor, target: Tensor) -> None:
    fatal(host.shape == target.shape, 'Host tensor has different shape')
    fatal(host.dtype == target.dtype, 'Host tensor has different dtype')
    target.device.require_host_access('a write')
    target.reader().write_tiles(host.host)


def to_torch(tensor: Tensor) -> torch.Tensor:
    if tensor.is_on_device:
        tensor.device.require_host_access('a read')
        values = tensor.reader().read().clone()
    else:
        values = tensor.host[tuple(slice(extent) for extent in tensor.shape)].clone()
    return values.bfloat16() if tensor.dtype == BFLOAT16 else values


def dump_tensor(path: str, tensor: Tensor) -> None:
    torch.save((tensor.shape, tensor.dtype.name, tensor.host), path)


def load_tensor(path: str) -> Tensor:
    shape, dtype, host = torch.load(Path(path))
    return Tensor(shape, DataType(dtype), host=host)


def emit(
    name: str,
    inputs: tuple[Tensor, ...],
    shapes: list[tuple[int, ...]],
    compute: Callable[..., tuple[torch.Tensor, ...]],
    *settings: object,
    dtype: DataType = BFLOAT16,
) -> list[Tensor]:
    """Allocate an op's results and issue it."""
    device = inputs[0].device
    slots = [tensor.reader() for tensor in inputs]
    outputs = [Tensor.on_device(device, shape, dtype) for shape in shapes]
    targets = [tensor.reader() for tensor in outputs]

    def op() -> None:
        results = compute(*(slot.read() for slot in slots))
        for target, result in zip(targets, results, strict=True):
            target.write(result)

    device.issue(name, program_of(slots, targets, settings), op)
    return outputs


def program_of(slots: list[Slot], targets: list[Slot], settings: tuple[object, ...]) -> object:
    return (tuple((s.shape, s.dtype) for s in (*slots, *targets)), repr(settings))


def linear(
    x: Tensor,
    weight: Tensor,
    *,
    dtype: DataType,
    compute_kernel_config: object,
    memory_config: object,
    program_config: Any = None,
    activation: str | None = None,
) -> Tensor:
    fatal(x.shape[-1] == weight.shape[-2], f'the inner sides of {x.shape} x {weight.shape} differ')
    if program_config is not None:
        k_tiles, n_tiles = weight.shape[-2] // TILE, weight.shape[-1] // TILE
        fatal(k_tiles % program_config.in0_block_w == 0, 'in0_block_w must divide K')
        grid = program_config.compute_with_storage_grid_size
        n_cores = grid[0] * grid[1]
        fatal(program_config.per_core_N * n_cores >= n_tiles, 'too few cores for N')
        fused = program_config.fused_activation
        activation = 'silu' if fused is not None and fused.op_type == 'SILU' else activation

    def compute(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor]:
        product = a @ b
        return (F.silu(product) if activation == 'silu' else product,)

    shape = (*x.shape[:-1], weight.shape[-1])
    settings = (program_config, activation, compute_kernel_config)
    return emit('linear', (x, weight), [shape], compute, *settings, dtype=dtype)[0]


def rms_norm(x: Tensor, *, epsilon: float, weight: Tensor) -> Tensor:
    fatal(weight.shape[-1] == x.shape[-1], 'the weight must be as wide as the input')

    def compute(a: torch.Tensor, gamma: torch.Tensor) -> tuple[torch.Tensor]:
        scale = torch.rsqrt(a.square().mean(dim=-1, keepdim=True) + epsilon)
        return (a * scale * gamma.reshape(-1),)

    return emit('rms_norm', (x, weight), [x.shape], compute, epsilon)[0]


def add(a: Tensor, b: Tensor, *, memory_config: object) -> Tensor:
    fatal(a.shape == b.shape, 'only equal shapes are emulated')
    return emit('add', (a, b), [a.shape], lambda x, y: (x + y,))[0]


def multiply(a: Tensor, b: Tensor, *, memory_config: object) -> Tensor:
    fatal(a.shape == b.shape, 'only equal shapes are emulated')
    return emit('multiply', (a, b), [a.shape], lambda x, y: (x * y,))[0]


def typecast(x: Tensor, dtype: DataType) -> Tensor:
    return emit('typecast', (x,), [x.shape], lambda a: (a,), dtype=dtype)[0]


def view(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    return x.view(tuple(shape))


def fill_cache(cache: Tensor, rows: Tensor, user: int, *, update_idx: int) -> Tensor:
    fatal(cache.dtype == rows.dtype, 'Input and cache tensors must have same dtype!')
    fatal(update_idx % TILE == 0, f'Fill update_idx ({update_idx}) must be a multiple of 32')
    fatal(update_idx + rows.shape[2] <= cache.shape[2], 'the rows do not fit the cache')
    fatal(cache.shape[1] == rows.shape[1] and cache.shape[3] == rows.shape[3], 'heads differ')
    source, target = rows.reader(), cache.reader()

    def op() -> None:
        target.write_rows(source.read()[0], user, update_idx)

    # Where it writes is an argument of the program, not a part of it.
    cache.device.issue('fill_cache', program_of([source], [target], ()), op)
    return cache


def nlp_create_qkv_heads(
    x: Tensor,
    *,
    num_heads: int,
    num_kv_heads: int,
    transpose_k_heads: bool,
    memory_config: object,
) -> tuple[Tensor, Tensor, Tensor]:
    fatal(not transpose_k_heads, 'transposed keys are not emulated')
    n_all = num_heads + 2 * num_kv_heads
    n_rows, head_dim = x.shape[2], x.shape[3] // n_all
    fatal(head_dim * n_all == x.shape[3], 'the width is no multiple of the heads')

    def compute(a: torch.Tensor) -> tuple[torch.Tensor, ...]:
        heads = a.reshape(1, n_rows, n_all, head_dim).transpose(1, 2)
        return torch.split(heads, [num_heads, num_kv_heads, num_kv_heads], dim=1)

    counts = (num_heads, num_kv_heads, num_kv_heads)
    shapes: list[tuple[int, ...]] = [(1, count, n_rows, head_dim) for count in counts]
    q, k, v = emit('nlp_create_qkv_heads', (x,), shapes, compute, counts, dtype=x.dtype)
    return q, k, v


def nlp_concat_heads(x: Tensor, *, memory_config: object) -> Tensor:
    shape = (1, 1, x.shape[2], x.shape[1] * x.shape[3])
    return emit('nlp_concat_heads', (x,), [shape], lambda a: (a.transpose(1, 2).reshape(shape),))[
        0
    ]


def rotary_embedding_hf(x: Tensor, cos: Tensor, sin: Tensor, *, is_decode_mode: bool) -> Tensor:
    fatal(not is_decode_mode, 'decode mode is not emulated')
    fatal(cos.shape == (1, 1, *x.shape[2:]) == sin.shape, 'the tables do not fit')

    def compute(a: torch.Tensor, c: torch.Tensor, s: torch.Tensor) -> tuple[torch.Tensor]:
        low, high = a.chunk(2, dim=-1)
        return (a * c + torch.cat([-high, low], dim=-1) * s,)

    return emit('rotary_embedding_hf', (x, cos, sin), [x.shape], compute)[0]


def scaled_dot_product_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    is_causal: bool,
    attn_mask: Tensor,
    scale: float,
    program_config: Any,
    compute_kernel_config: Any,
    memory_config: object,
) -> Tensor:
    fatal(q.shape[1] % k.shape[1] == 0, 'query heads must be a multiple of key heads')
    fatal(
        attn_mask.shape == (1, 1, q.shape[2], k.shape[2]), f'mask {attn_mask.shape} does not fit'
    )
    return _attention(
        'scaled_dot_product_attention',
        q,
        k,
        v,
        attn_mask,
        scale,
        program_config,
        compute_kernel_config,
        is_causal=is_causal,
    )


def scaled_dot_product_attention_decode(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    is_causal: bool,
    attn_mask: Tensor,
    scale: float,
    program_config: Any,
    compute_kernel_config: Any,
    memory_config: object,
) -> Tensor:
    chunk = program_config.k_chunk_size
    fatal(chunk & (chunk - 1) == 0, f'k_chunk_size must be power of 2, got: {chunk}')
    n_rows = k.shape[2]
    fatal(n_rows % chunk == 0, f'Mask sequence length must be multiple of chunk size, {n_rows}')
    fatal(q.shape[1] == k.shape[0] and k.shape[1] == 1, 'one head per user is emulated')
    fatal(attn_mask.shape == (1, 1, q.shape[2], n_rows), f'mask {attn_mask.shape} does not fit')
    return _attention(
        'scaled_dot_product_attention_decode',
        q,
        k,
        v,
        attn_mask,
        scale,
        program_config,
        compute_kernel_config,
        is_causal=is_causal,
    )


def _attention(
    name: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor,
    scale: float,
    program: Any,
    kernel: Any,
    *,
    is_causal: bool,
) -> Tensor:
    fatal(not is_causal, 'only attention with a mask is emulated')
    fatal(q.dtype == BFLOAT16, 'queries must be bfloat16')
    state = 'FLOAT32' if kernel.fp32_dest_acc_en else 'BFLOAT16'

    def compute(*arrays: torch.Tensor) -> tuple[torch.Tensor]:
        queries, keys, values, shown = arrays
        n_kv = keys.shape[0] * keys.shape[1]
        rows = queries.reshape(n_kv, -1, queries.shape[3])
        keys, values = (a.reshape(n_kv, -1, a.shape[3]) for a in (keys, values))
        n_repeats = rows.shape[1] // shown.shape[2]
        bias = shown[0, 0].repeat(n_repeats, 1)
        mixed = online_softmax(rows, keys, values, bias, scale, program.k_chunk_size, state)
        return (mixed.reshape(queries.shape),)

    return emit(name, (q, k, v, mask), [q.shape], compute, program, kernel, scale)[0]


def online_softmax(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    bias: torch.Tensor,
    scale: float,
    chunk: int,
    state: str,
) -> torch.Tensor:
    """
    Attend chunk by chunk, as the kernels do, keeping maximum, sum and result in a format.

    :param queries: (G, R, D)
    :param keys: (G, T, D)
    :param values: (G, T, D)
    :param bias: (R, T), scaled with the scores
    :return: (G, R, D)
    """
    largest = torch.full((*queries.shape[:2], 1), -torch.inf)
    total = torch.zeros_like(largest)
    mixed = torch.zeros_like(queries)
    for start in range(0, keys.shape[1], chunk):
        rows = slice(start, start + chunk)
        scores = round_to((queries @ keys[:, rows].mT + bias[:, rows]) * scale, state)
        new_largest = torch.maximum(largest, scores.amax(dim=2, keepdim=True))
        weights = round_to((scores - new_largest).exp(), 'BFLOAT16')
        rescale = (largest - new_largest).exp()
        total = round_to(total * rescale + weights.sum(dim=2, keepdim=True), state)
        mixed = round_to(mixed * rescale + weights @ values[:, rows], state)
        largest = new_largest
    return mixed / total


def make_library(open_device: Callable[..., Device] | None = None) -> ModuleType:
    """
    Build the module that stands in for ttnn.

    :param open_device: called by `ttnn.open_device`; by default makes a new chip
    """

    def default_open(*, device_id: int, trace_region_size: int, **_: object) -> Device:
        return Device(trace_region_size)

    def memory_view(device: Device, _: object) -> SimpleNamespace:
        return SimpleNamespace(
            num_banks=N_BANKS, total_bytes_allocated_per_bank=device.n_bytes_in_use / N_BANKS
        )

    def execute_trace(device: Device, trace_id: int, *, cq_id: int, blocking: bool) -> None:
        device.execute_trace(trace_id)

    module = ModuleType('ttnn')
    names: dict[str, object] = {
        'bfloat16': BFLOAT16,
        'bfloat8_b': DataType('BFLOAT8_B'),
        'bfloat4_b': DataType('BFLOAT4_B'),
        'float32': DataType('FLOAT32'),
        'TILE_LAYOUT': TILE_LAYOUT,
        'DRAM_MEMORY_CONFIG': 'DRAM',
        'BufferType': SimpleNamespace(DRAM='DRAM', L1='L1'),
        'MathFidelity': SimpleNamespace(HiFi2='HiFi2', HiFi4='HiFi4'),
        'UnaryOpType': SimpleNamespace(SILU='SILU'),
        'UnaryWithParam': lambda op_type: Config(op_type=op_type),
        'CoreCoord': lambda x, y: (x, y),
        'Tensor': Tensor,
        'Device': Device,
        'MatmulMultiCoreReuseMultiCast1DProgramConfig': Config,
        'SDPAProgramConfig': Config,
        'WormholeComputeKernelConfig': Config,
        'transformer': SimpleNamespace(
            scaled_dot_product_attention=scaled_dot_product_attention,
            scaled_dot_product_attention_decode=scaled_dot_product_attention_decode,
        ),
        'experimental': SimpleNamespace(
            nlp_create_qkv_heads=nlp_create_qkv_heads,
            nlp_concat_heads=nlp_concat_heads,
            rotary_embedding_hf=rotary_embedding_hf,
        ),
        'open_device': open_device or default_open,
        'close_device': lambda device: device.close(),
        'synchronize_device': lambda device: device.require_host_access('a synchronisation'),
        'get_memory_view': memory_view,
        'begin_trace_capture': lambda device, *, cq_id: device.begin_trace(),
        'end_trace_capture': lambda device, trace_id, *, cq_id: device.end_trace(trace_id),
        'execute_trace': execute_trace,
        'release_trace': lambda device, trace_id: device.release_trace(trace_id),
    }
    functions = (
        from_torch,
        to_device,
        copy_host_to_device_tensor,
        to_torch,
        dump_tensor,
        load_tensor,
        linear,
        rms_norm,
        add,
        multiply,
        typecast,
        view,
        fill_cache,
    )
    names |= {function.__name__: function for function in functions}
    for name, value in names.items():
        setattr(module, name, value)
    return module


def install() -> None:
    """Let `import ttnn` mean the emulation in this process, unless something took the name."""
    if 'ttnn' not in sys.modules:
        module = make_library()
        module.__spec__ = ModuleSpec('ttnn', None)
        sys.modules['ttnn'] = module
