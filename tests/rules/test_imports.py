# SPDX-License-Identifier: Apache-2.0
"""Imports run one way: the table of docs/architecture.md, held over every module."""

from dataclasses import dataclass
import subprocess
import sys

import pytest

from tests.rules.tree import PACKAGE
from tests.rules.tree import ROOT
from tests.rules.tree import imports_of
from tests.rules.tree import module_name
from tests.rules.tree import project_files
from tests.rules.tree import python_files

MESSAGES = (
    'alpamayo_msgs',
    'builtin_interfaces',
    'diagnostic_msgs',
    'geometry_msgs',
    'lifecycle_msgs',
    'nav_msgs',
    'rcl_interfaces',
    'rosgraph_msgs',
    'std_msgs',
    'std_srvs',
    'visualization_msgs',
)


@dataclass(frozen=True)
class Layer:
    """What the modules of one layer may import."""

    ours: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()
    may_import_late: bool = False


LAYERS = {
    '': Layer(),  # the package's own __init__
    'errors': Layer(),
    'threads': Layer(),
    'contracts': Layer(ours=('errors',), outside=('numpy',)),
    'model': Layer(ours=('errors', 'contracts'), outside=('numpy', 'torch', 'safetensors')),
    'plan': Layer(ours=('errors', 'contracts'), outside=('numpy',)),
    'ros': Layer(ours=('errors', 'contracts', 'plan'), outside=('numpy', 'rclpy', *MESSAGES)),
    'chip': Layer(ours=('errors', 'contracts', 'model'), outside=('numpy', 'torch', 'ttnn')),
    # What must be known before ttnn is imported, or without it.
    'chip.options': Layer(ours=('errors',)),
    'chip.environment': Layer(ours=('errors',)),
    'chip.owner': Layer(ours=('errors',)),
    # ttnn is imported when it is chosen.
    'backend': Layer(ours=('errors', 'contracts', 'model', 'chip'), may_import_late=True),
    'main': Layer(ours=('errors', 'contracts', 'model', 'plan', 'ros', 'backend', 'chip')),
    'stand_in': Layer(ours=('errors', 'contracts', 'model', 'ros')),
    # Signals must be in hand before slow imports begin, and a command loads its own module alone.
    'executables': Layer(ours=('main', 'stand_in', 'threads'), may_import_late=True),
    'tools': Layer(
        ours=('', 'errors', 'threads', 'contracts', 'model', 'plan', 'ros', 'backend'),
        outside=(
            'ament_index_python',
            'matplotlib',
            'numpy',
            'rclpy',
            'safetensors',
            'torch',
            'transformers',
            *MESSAGES,
        ),
    ),
    'tools.cli': Layer(ours=('', 'errors', 'threads', 'tools'), may_import_late=True),
}
"""Layer of a module or folder below the package; each may import itself besides."""

ONLY_IN = {
    'transformers': ('tools.make_context',),
    'rclpy': ('ros', 'tools.demo'),
    'ttnn': ('chip',),
    'matplotlib': ('tools',),
}


def layer_of(name: str) -> str:
    """
    Find the layer that a module, or a name in it, belongs to.

    :param name: dotted name below the package
    """
    matching = [layer for layer in LAYERS if f'{name}.'.startswith(f'{layer}.') or not layer]
    return max(matching, key=len)


def violations(module: str, source: str) -> list[str]:
    """Say for each forbidden import of a module what is wrong with it."""
    below = module.removeprefix(PACKAGE).lstrip('.')
    own = layer_of(below)
    layer = LAYERS[own]
    found = []
    for item in imports_of(source):
        root, _, rest = item.name.partition('.')
        where = f'{module}:{item.line} imports {item.name}'
        if item.name == '?' and not layer.may_import_late:
            found.append(f'{where}: a computed name')
        elif not item.at_top and not layer.may_import_late:
            found.append(f'{where}: not at the top')
        elif not root:
            found.append(f'{where}: relative')
        elif root == PACKAGE:
            target = layer_of(rest).split('.')[0]
            if target not in (own.split('.')[0], *layer.ours):
                found.append(f'{where}: {own} may not import {target}')
        elif item.name != '?' and root not in (*sys.stdlib_module_names, *layer.outside):
            found.append(f'{where}: {own} may not import {root}')
    return found


def test_imports_of_every_module_run_one_way() -> None:
    files = python_files(PACKAGE)
    assert len(files) > len(LAYERS)
    assert [v for path in files for v in violations(module_name(path), path.read_text())] == []


@pytest.mark.parametrize('package', sorted(ONLY_IN))
def test_imports_of_heavy_packages_stay_where_they_belong(package: str) -> None:
    importing = {
        module_name(path).removeprefix(f'{PACKAGE}.')
        for path in python_files(PACKAGE)
        if any(item.name.split('.')[0] == package for item in imports_of(path.read_text()))
    }
    allowed = ONLY_IN[package]
    assert [
        name for name in importing if not any(f'{name}.'.startswith(f'{a}.') for a in allowed)
    ] == []


def test_imports_of_launch_files_need_no_module_of_ours() -> None:
    allowed = ('ament_index_python', 'launch', 'launch_ros', *sys.stdlib_module_names)
    files = [p for p in project_files() if p.name.endswith('.launch.py')]
    assert files
    for path in files:
        names = {item.name.split('.')[0] for item in imports_of(path.read_text())}
        assert names <= set(allowed), path.name


@pytest.mark.parametrize(
    ('module', 'source', 'wrong'),
    [
        ('plan.gate', 'import torch', 'plan may not import torch'),
        ('plan.gate', 'from alpamayo_node.model.flow import euler', 'plan may not import model'),
        ('plan.gate', 'from alpamayo_node import backend', 'plan may not import backend'),
        ('model.flow', 'import rclpy.node', 'model may not import rclpy'),
        ('model.flow', 'from . import rope', 'relative'),
        ('model.flow', 'def f():\n    import math', 'not at the top'),
        ('model.flow', 'if True:\n    import math', 'not at the top'),
        ('model.flow', 'import importlib\nx = importlib.import_module(n)', 'a computed name'),
        ('model.flow', "import importlib\nx = importlib.import_module('ttnn')", 'not at the top'),
        ('ros.node', 'from alpamayo_node import model', 'ros may not import model'),
        ('ros.node', 'import torch', 'ros may not import torch'),
        ('contracts', 'import alpamayo_node.plan.gate', 'contracts may not import plan'),
        ('errors', 'import numpy', 'errors may not import numpy'),
        ('tools.plan', 'import ttnn', 'tools may not import ttnn'),
        ('model.flow', 'import ttnn', 'model may not import ttnn'),
        ('chip.layer', 'import rclpy', 'chip may not import rclpy'),
        ('chip.layer', 'import alpamayo_node.plan.gate', 'chip may not import plan'),
        ('chip.options', 'import ttnn', 'chip.options may not import ttnn'),
        ('backend', 'import ttnn', 'backend may not import ttnn'),
        ('main', 'import alpamayo_node.tools.cli', 'main may not import tools'),
        ('backend', 'import alpamayo_node.main', 'backend may not import main'),
    ],
)
def test_imports_forbidden_one_is_named(module: str, source: str, wrong: str) -> None:
    found = violations(f'{PACKAGE}.{module}', source)
    assert len(found) == 1
    assert found[0].endswith(wrong)


def test_imports_allowed_ones_pass() -> None:
    source = (
        'import math\nimport numpy as np\nfrom alpamayo_node.contracts import Plan\n'
        'from alpamayo_node.plan import gate\n'
    )
    assert violations(f'{PACKAGE}.plan.planner', source) == []


@pytest.mark.parametrize(
    ('folder', 'unwanted'),
    [
        ('plan', ('matplotlib', 'rclpy', 'torch', 'transformers', 'ttnn')),
        ('model', ('matplotlib', 'rclpy', 'transformers', 'ttnn')),
        pytest.param(
            'ros', ('matplotlib', 'torch', 'transformers', 'ttnn'), marks=pytest.mark.ros
        ),
        ('tools/cli.py', ('matplotlib', 'numpy', 'rclpy', 'torch', 'transformers', 'ttnn')),
        ('tools/preflight.py', ('matplotlib', 'numpy', 'rclpy', 'torch', 'transformers', 'ttnn')),
        ('executables.py', ('numpy', 'rclpy', 'torch')),
        ('backend.py', ('matplotlib', 'rclpy', 'transformers', 'ttnn')),
        pytest.param('main.py', ('matplotlib', 'transformers', 'ttnn'), marks=pytest.mark.ros),
    ],
)
def test_import_of_a_layer_loads_nothing_of_the_others(
    folder: str, unwanted: tuple[str, ...]
) -> None:
    modules = [
        module_name(path)
        for path in python_files(PACKAGE)
        if path.relative_to(ROOT / PACKAGE).as_posix().startswith(folder)
    ]
    assert modules
    code = f'import sys, {", ".join(modules)}; print(*sys.modules.keys() & {set(unwanted)!r})'
    process = subprocess.run(
        [sys.executable, '-c', code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (process.returncode, process.stdout.strip()) == (0, ''), process.stderr
