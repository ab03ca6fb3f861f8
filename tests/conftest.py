# SPDX-License-Identifier: Apache-2.0
"""
What holds for every test: a ROS graph of its own, fixed seeds, and who may be skipped.

Tests below `ros/` and `system/` need rclpy and the built messages, tests marked `chip` need a
Tenstorrent chip. Where these are missing, such tests are skipped with the reason, unless
ALPAMAYO_REQUIRE names them (`ros`, `chip`, with a comma between): then they fail.
"""

import importlib.util
import os
from pathlib import Path
import random
import sys

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
DEVICE_NODES = Path('/dev/tenstorrent')
ROS_FOLDERS = tuple(ROOT / 'tests' / name for name in ('ros', 'system'))
# Domains above this one can meet the ports that Linux gives to outgoing connections.
MAX_DOMAIN_ID = 101


def pytest_configure() -> None:
    # A developer's own ROS graph must neither be seen nor be disturbed, by us or by what we start.
    os.environ.update(
        ROS_AUTOMATIC_DISCOVERY_RANGE='LOCALHOST',
        ROS_DOMAIN_ID=str(random.SystemRandom().randint(1, MAX_DOMAIN_ID)),
        ROS_LOG_DIR=str(ROOT / 'ros2_ws' / 'log' / 'tests'),
    )


def missing_ros() -> str:
    """Say what of ROS is missing, or nothing."""
    names = ('rclpy', 'alpamayo_msgs')
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    return f'no {" and no ".join(missing)} here (run `. ./env.sh` first)' if missing else ''


def missing_chip() -> str:
    """Say why no chip can be used, or nothing."""
    return '' if DEVICE_NODES.exists() else f'no {DEVICE_NODES}: no Tenstorrent chip'


def is_required(what: str) -> bool:
    return what in os.environ.get('ALPAMAYO_REQUIRE', '').split(',')


class MissingRos(pytest.Module):
    """A module of ROS tests that cannot even be imported here."""

    def collect(self) -> list[pytest.Item]:
        if is_required('ros'):
            raise self.CollectError(missing_ros())
        pytest.skip(missing_ros(), allow_module_level=True)


def pytest_pycollect_makemodule(
    module_path: Path, parent: pytest.Collector
) -> pytest.Module | None:
    is_ros = any(folder in module_path.parents for folder in ROS_FOLDERS)
    if is_ros and missing_ros():
        return MissingRos.from_parent(parent, path=module_path)
    return None


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker, missing in (('ros', missing_ros), ('chip', missing_chip)):
        if item.get_closest_marker(marker) and (reason := missing()):
            if is_required(marker):
                pytest.fail(f'ALPAMAYO_REQUIRE names {marker}, but: {reason}', pytrace=False)
            pytest.skip(reason)


@pytest.fixture(autouse=True)
def _seeds() -> None:
    random.seed(0)
    np.random.seed(0)
    # A test of the planner must not be the one that loads torch.
    if torch := sys.modules.get('torch'):
        torch.manual_seed(0)


@pytest.fixture(scope='session')
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a folder with `checkpoint/` and three files in `contexts/`; not to be changed."""
    from alpamayo_node.plan.motion import Motion
    from alpamayo_node.plan.motion import MotionKind
    from alpamayo_node.tools.make_checkpoint import write_checkpoint
    from alpamayo_node.tools.make_context import ContextSpec
    from alpamayo_node.tools.make_context import make_context

    root = tmp_path_factory.mktemp('tiny_model')
    write_checkpoint(root / 'checkpoint', 'tiny', 0, print)
    (root / 'contexts').mkdir()
    for i in range(3):
        spec = ContextSpec(
            n_rows=200 + 17 * i,
            rope_delta=-100 - i,
            left_pad=7 * i,
            seed=i,
            motion=Motion(MotionKind.CIRCLE, 8.0),
        )
        path = root / 'contexts' / f'drive-{i}.safetensors'
        make_context(root / 'checkpoint', path, spec, print)
    return root
