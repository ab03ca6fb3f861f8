# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace
import json
from pathlib import Path

import numpy as np
import pytest

from alpamayo_node.backend import BackendConfig
from alpamayo_node.backend import build_expert
from alpamayo_node.contracts import EulerStep
from alpamayo_node.contracts import PlanRequest
from alpamayo_node.errors import ConfigError
from alpamayo_node.model.checkpoint import Checkpoint
from alpamayo_node.model.checkpoint import expected_tensors
from alpamayo_node.model.context_file import FileStore
from alpamayo_node.model.context_file import read_context_info
from alpamayo_node.plan.adjust import AdjustLimits
from alpamayo_node.plan.gate import GateLimits
from alpamayo_node.plan.history import HistoryLimits
from alpamayo_node.plan.history import ego_start
from alpamayo_node.plan.planner import Planner
from alpamayo_node.tools import make_checkpoint
from alpamayo_node.tools.make_checkpoint import PRESETS
from alpamayo_node.tools.make_checkpoint import write_checkpoint


def never() -> bool:
    return False


def plans_of(model: Path, precision: str, i_context: int = 0, n_samples: int = 1, seed: int = 0):
    """Plan with a tiny model; also gives every step that was taken."""
    path = model / 'contexts' / f'drive-{i_context}.safetensors'
    context = read_context_info(path)
    start = ego_start(context.history, context.t0_ns, context.frame_id, HistoryLimits())
    config = BackendConfig(model / 'checkpoint', precision=precision, max_rows=512)
    expert = build_expert(config, never, lambda text: None)
    planner = Planner(
        expert, FileStore(path.parent), adjust_limits=AdjustLimits(), gate_limits=GateLimits()
    )
    request = PlanRequest(context, start, seed, 10, n_samples, 1.0)
    steps: list[EulerStep] = []
    plans = planner.plan(request, never, on_step=lambda i, step: steps.append(step))
    planner.close()
    return plans, steps


def relative(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def test_make_checkpoint_same_seed_same_bytes_and_another_seed_does_not(tmp_path: Path) -> None:
    for name, seed in (('a', 3), ('b', 3), ('c', 4)):
        write_checkpoint(tmp_path / name, 'tiny', seed, print)
    a, b, c = (
        Checkpoint.open(tmp_path / name).fingerprint(never, lambda text: None) for name in 'abc'
    )
    assert a == b
    assert a != c


def test_make_checkpoint_names_text_model_shards_that_are_not_there(tiny_model: Path) -> None:
    index = tiny_model / 'checkpoint' / 'model.safetensors.index.json'
    weight_map = json.loads(index.read_text())['weight_map']
    assert not (tiny_model / 'checkpoint' / weight_map['vlm.lm_head.weight']).exists()
    Checkpoint.open(tiny_model / 'checkpoint')


def test_make_checkpoint_super_has_the_released_extent() -> None:
    shapes = expected_tensors(PRESETS['super'])
    assert len(shapes) == 717
    n_parameters = sum(int(np.prod(shape)) for shape in shapes.values())
    assert n_parameters == 2_416_133_632 + 1_085_952 + 3_074


def test_make_checkpoint_in_several_shards_reads_back(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(make_checkpoint, 'SHARD_BYTES', 200_000)
    lines: list[str] = []
    write_checkpoint(tmp_path / 'c', 'tiny', 0, lines.append)
    assert len(lines) > 2
    Checkpoint.open(tmp_path / 'c')


def test_make_checkpoint_into_a_folder_that_is_used_is_refused(tmp_path: Path) -> None:
    (tmp_path / 'x').write_text('mine')
    with pytest.raises(ConfigError, match='must be empty'):
        write_checkpoint(tmp_path, 'tiny', 0, print)
    assert (tmp_path / 'x').read_text() == 'mine'


def test_tame_flow_velocities_agree_between_precisions_at_every_point(tiny_model: Path) -> None:
    # Velocities at the points that float32 went through, not end points alone.
    _, exact = plans_of(tiny_model, 'float32')
    _, rounded = plans_of(tiny_model, 'bfloat16')
    for a, b in zip(rounded, exact, strict=True):
        assert relative(a.v, b.v) < 0.05


def test_tame_flow_plans_agree_between_precisions(tiny_model: Path) -> None:
    exact, _ = plans_of(tiny_model, 'float32', n_samples=4)
    rounded, _ = plans_of(tiny_model, 'bfloat16', n_samples=4)
    for a, b in zip(rounded, exact, strict=True):
        assert relative(a.action, b.action) < 0.02
        error_m = np.hypot(
            a.trajectory.x_m - b.trajectory.x_m, a.trajectory.y_m - b.trajectory.y_m
        )
        assert error_m.max() < 0.5


def test_random_plans_pass_the_gate(tiny_model: Path) -> None:
    for i_context in range(3):
        plans, _ = plans_of(tiny_model, 'bfloat16', i_context, n_samples=16)
        assert all(plan.is_valid for plan in plans)
        spread = np.std([plan.action for plan in plans])
        assert 0.2 < spread < 3.0


def test_another_context_or_seed_gives_another_plan(tiny_model: Path) -> None:
    ((first,), _), ((second,), _) = (plans_of(tiny_model, 'float32', i) for i in (0, 1))
    assert relative(first.action, second.action) > 0.02
    ((third,), _) = plans_of(tiny_model, 'float32', 0, seed=1)
    assert relative(first.action, third.action) > 0.5


def test_limits_of_the_backend_are_named() -> None:
    with pytest.raises(ConfigError, match='backend'):
        replace(BackendConfig(Path()), backend='abacus')
