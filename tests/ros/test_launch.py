# SPDX-License-Identifier: Apache-2.0
import importlib.util
from pathlib import Path
import sys
from typing import Any

import pytest
import yaml

from alpamayo_node.errors import SetupError
from alpamayo_node.ros.node import CLOSE_TIMEOUT_S
from alpamayo_node.ros.process import SPIN_TIMEOUT_S
from alpamayo_node.tools import launch_plan
from alpamayo_node.tools.launch_plan import Process
from alpamayo_node.tools.launch_plan import processes

pytestmark = pytest.mark.ros

ROOT = Path(__file__).parents[2]
FILES = sorted(path.name for path in (ROOT / 'launch').glob('*.launch.py'))


def parameters_of(process: Process) -> dict[str, Any]:
    """Merge the parameter files of a command line, later ones winning, as ROS does."""
    merged: dict[str, Any] = {}
    for flag, value in zip(process.argv, process.argv[1:], strict=False):
        if flag == '--params-file':
            merged |= flat(yaml.safe_load(Path(value).read_text())['/**']['ros__parameters'])
    return merged


def flat(values: dict[str, Any], prefix: str = '') -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            result |= flat(value, f'{prefix}{name}.')
        else:
            result[f'{prefix}{name}'] = value
    return result


@pytest.mark.parametrize('file', FILES)
def test_launch_file_starts_executables_that_exist(file: str) -> None:
    for process in processes(file, {}):
        assert Path(process.argv[0]).is_file()


def test_launch_planner_arguments_reach_its_parameters() -> None:
    (planner,) = processes(
        'planner.launch.py',
        {
            'checkpoint': '/data/12345',
            'context_directory': '/run/kv',
            'use_sim_time': 'true',
            'autostart': 'False',
            'namespace': 'a/b',
            'name': 'mine',
            'log_level': 'debug',
        },
    )
    values = parameters_of(planner)
    assert values['checkpoint.directory'] == '/data/12345'
    assert values['context.directory'] == '/run/kv'
    assert values['use_sim_time'] is True
    assert values['autostart'] is False
    assert values['gate.max_accel_mps2'] == 9.8
    line = ' '.join(planner.argv)
    assert '-r __ns:=/a/b' in line
    assert '-r __node:=mine' in line
    assert '--log-level debug' in line


def test_launch_numbers_that_look_like_a_path_stay_texts() -> None:
    (planner,) = processes('planner.launch.py', {'checkpoint': '007'})
    assert parameters_of(planner)['checkpoint.directory'] == '007'


def test_launch_demo_gives_both_nodes_the_same_folder() -> None:
    planner, stand_in = processes(
        'demo.launch.py', {'context_directory': '/c', 'count': '5', 'rate_hz': '3'}
    )
    assert parameters_of(planner)['context.directory'] == '/c'
    values = parameters_of(stand_in)
    assert values['context.directory'] == '/c'
    assert values['count'] == 5
    assert values['rate_hz'] == 3.0
    assert isinstance(values['rate_hz'], float)


@pytest.mark.parametrize(
    ('file', 'given', 'hint'),
    [
        ('planner.launch.py', {'chekpoint': 'x'}, 'chekpoint'),
        ('planner.launch.py', {'use_sim_time': 'maybe'}, 'maybe'),
        ('demo.launch.py', {'count': 'many'}, 'many'),
        ('absent.launch.py', {}, 'no such launch file'),
    ],
)
def test_launch_mistakes_are_refused(file: str, given: dict[str, str], hint: str) -> None:
    with pytest.raises(SetupError, match=hint):
        processes(file, given)


@pytest.mark.parametrize('file', FILES)
def test_launch_kills_a_planner_only_after_the_longest_close(file: str) -> None:
    # A process that owns a chip must never be killed while it closes.
    planner = processes(file, {})[0]
    assert planner.name == 'planner'
    assert planner.kill_after_s > 2 * SPIN_TIMEOUT_S + CLOSE_TIMEOUT_S


def test_launch_timeouts_can_be_given() -> None:
    given = {'sigterm_timeout': '90', 'sigkill_timeout': '5.5'}
    assert processes('planner.launch.py', given)[0].kill_after_s == 95.5


@pytest.mark.parametrize(
    ('namespace', 'expected'), [('', '/'), ('car', '/car'), ('/car', '/car'), ('a/b/', '/a/b')]
)
def test_launch_namespace_is_absolute(namespace: str, expected: str) -> None:
    for process in processes('demo.launch.py', {'namespace': namespace}):
        assert f'-r __ns:={expected} ' in ' '.join(process.argv)


@pytest.mark.parametrize(
    ('body', 'hint'),
    [
        ('from launch.actions import TimerAction', 'TimerAction'),
        ('from launch.conditions import IfCondition', 'launch.conditions'),
        ('Node(package="alpamayo_node", executable="planner", respawn=True)', 'respawn'),
    ],
)
def test_launch_file_that_uses_more_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, hint: str
) -> None:
    (tmp_path / 'launch').mkdir()
    (tmp_path / 'launch' / 'more.launch.py').write_text(
        f'from launch_ros.actions import Node\ndef generate_launch_description():\n    {body}\n'
    )
    monkeypatch.setattr(launch_plan, 'get_package_share_path', lambda package: tmp_path)
    before = set(sys.modules)
    with pytest.raises(SetupError, match=hint):
        processes('more.launch.py', {})
    assert set(sys.modules) == before


@pytest.mark.parametrize('file', FILES)
def test_launch_file_is_taken_by_the_real_launch(file: str) -> None:
    pytest.importorskip('launch_ros', reason='launch is on no package index')
    spec = importlib.util.spec_from_file_location('launch_file', ROOT / 'launch' / file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.generate_launch_description().entities
