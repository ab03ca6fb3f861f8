# SPDX-License-Identifier: Apache-2.0
"""
Work out which processes a launch file of ours starts, with their exact command lines.

A vehicle uses `ros2 launch`. Where the ROS `launch` package is not installed (it is on no package
index), this evaluates the very same launch files with stand-ins for the handful of classes that
they use, so that the demo and the tests start what the launch file says. A file that uses anything
else is refused. The stand-ins know the keywords of launch 3.4 and launch_ros 0.26 that our files
use, no more; docs/launch.md says what was checked with the real ones.
"""

from collections.abc import Iterator
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from dataclasses import field
import importlib.util
import json
from pathlib import Path
import sys
from tempfile import NamedTemporaryFile
from types import ModuleType

from ament_index_python.packages import get_package_prefix
from ament_index_python.packages import get_package_share_path

from alpamayo_node.errors import SetupError

type Substitution = str | LaunchConfiguration
type Scalar = str | float | bool


@dataclass(frozen=True)
class Process:
    """One process of a launch file."""

    name: str
    argv: tuple[str, ...]
    kill_after_s: float
    """From SIGINT to SIGKILL: what it may take to end in order."""


@dataclass(frozen=True)
class LaunchConfiguration:
    """Stand-in: the value of an argument."""

    variable_name: str


@dataclass(frozen=True)
class DeclareLaunchArgument:
    """Stand-in: an argument with its default."""

    name: str
    default_value: str
    description: str


@dataclass(frozen=True)
class ParameterValue:
    """Stand-in: a substitution and the type that it becomes."""

    value: Substitution
    value_type: type


@dataclass(frozen=True, kw_only=True)
class Node:
    """Stand-in: one ROS executable."""

    package: str
    executable: str
    name: Substitution | None = None
    namespace: Substitution | None = None
    parameters: list[Substitution | dict[str, ParameterValue]] = field(default_factory=list)
    arguments: list[Substitution] = field(default_factory=list)
    output: str = 'log'
    sigterm_timeout: Substitution = '5'
    sigkill_timeout: Substitution = '5'


@dataclass(frozen=True)
class LaunchDescription:
    """Stand-in: what a launch file returns."""

    entities: list[DeclareLaunchArgument | Node]


_MODULES: Mapping[str, tuple[type, ...]] = {
    'launch': (LaunchDescription,),
    'launch.actions': (DeclareLaunchArgument,),
    'launch.substitutions': (LaunchConfiguration,),
    'launch_ros': (),
    'launch_ros.actions': (Node,),
    'launch_ros.parameter_descriptions': (ParameterValue,),
}


def processes(file: str, given: Mapping[str, str]) -> tuple[Process, ...]:
    """
    Evaluate one of the package's launch files.

    :param file: name in the package's launch folder
    :param given: launch arguments, as on the command line
    :return: what is started, in order
    :raises SetupError: no such file, an unknown argument, or a class that has no stand-in
    """
    description = _describe(get_package_share_path('alpamayo_node') / 'launch' / file)
    declared = {
        entity.name: entity.default_value
        for entity in description.entities
        if isinstance(entity, DeclareLaunchArgument)
    }
    if unknown := sorted(set(given) - set(declared)):
        raise SetupError(f'{file} has no argument {unknown[0]}; it has {", ".join(declared)}')
    values = {**declared, **given}
    nodes = [entity for entity in description.entities if isinstance(entity, Node)]
    return tuple(_process(node, values) for node in nodes)


def _describe(path: Path) -> LaunchDescription:
    spec = importlib.util.spec_from_file_location(path.name.replace('.', '_'), path)
    if spec is None or spec.loader is None or not path.is_file():
        raise SetupError(f'{path}: no such launch file')
    module = importlib.util.module_from_spec(spec)
    with _stand_ins():
        try:
            spec.loader.exec_module(module)
            description = module.generate_launch_description()
        except (ImportError, TypeError) as error:
            raise SetupError(f'{path.name} needs the real launch package: {error}') from error
    assert isinstance(description, LaunchDescription)
    return description


@contextmanager
def _stand_ins() -> Iterator[None]:
    before = {name: sys.modules.get(name) for name in _MODULES}
    for name, classes in _MODULES.items():
        module = sys.modules[name] = ModuleType(name)
        for cls in classes:
            setattr(module, cls.__name__, cls)
    try:
        yield
    finally:
        for name, original in before.items():
            del sys.modules[name]
            if original is not None:
                sys.modules[name] = original


def _process(node: Node, values: Mapping[str, str]) -> Process:
    def text(value: Substitution) -> str:
        return values[value.variable_name] if isinstance(value, LaunchConfiguration) else value

    prefix = Path(get_package_prefix(node.package))
    argv = [str(prefix / 'lib' / node.package / node.executable)]
    argv += [text(argument) for argument in node.arguments]
    argv.append('--ros-args')
    if node.name is not None:
        argv += ['-r', f'__node:={text(node.name)}']
    if node.namespace is not None:
        argv += ['-r', f'__ns:=/{text(node.namespace).strip("/")}']
    for parameters in node.parameters:
        if isinstance(parameters, dict):
            resolved = {
                name: _typed(text(value.value), value.value_type)
                for name, value in parameters.items()
            }
            argv += ['--params-file', _parameter_file(resolved)]
        else:
            argv += ['--params-file', text(parameters)]
    timeouts = (text(node.sigterm_timeout), text(node.sigkill_timeout))
    return Process(
        name=node.executable,
        argv=tuple(argv),
        kill_after_s=sum(float(_typed(timeout, float)) for timeout in timeouts),
    )


def _typed(text: str, value_type: type) -> Scalar:
    if value_type is bool:
        if text.lower() not in ('true', 'false'):
            raise SetupError(f'{text!r} is neither true nor false')
        return text.lower() == 'true'
    try:
        result: Scalar = value_type(text)
    except ValueError as error:
        raise SetupError(f'{text!r} is no {value_type.__name__}') from error
    return result


def _parameter_file(parameters: Mapping[str, Scalar]) -> str:
    """Write a parameter file for one process, as launch_ros does; JSON is YAML."""
    content = json.dumps({'/**': {'ros__parameters': parameters}})
    with NamedTemporaryFile('w', suffix='.yaml', prefix='launch_params_', delete=False) as file:
        file.write(content)
    return file.name
