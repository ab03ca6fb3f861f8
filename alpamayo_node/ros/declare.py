# SPDX-License-Identifier: Apache-2.0
"""Declare parameters on a node, refusing wrong values and misspelt names."""

from collections.abc import Iterable
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from rclpy.exceptions import InvalidParameterTypeException
from rclpy.exceptions import InvalidParameterValueException
from rclpy.node import Node

from alpamayo_node.errors import ConfigError
from alpamayo_node.ros.params import TABLE
from alpamayo_node.ros.params import Parameter
from alpamayo_node.ros.params import Settings
from alpamayo_node.ros.params import Value
from alpamayo_node.ros.params import read_settings

_NAMES = tuple(row.name for row in TABLE)
# rclpy itself reads `qos_overrides.*`; `qos.*` is ours.
_GROUPS = frozenset(name.split('.')[0] for name in _NAMES if '.' in name)


def declare_table(node: Node) -> Settings:
    """
    Declare all parameters and read what was given for them.

    :raises ConfigError: the first value that is refused, or a name in one of our groups that is
        no parameter; names outside of them may belong to other nodes that share a file
    """
    given: Mapping[str, Any] = node._parameter_overrides  # noqa: SLF001  (rclpy has no accessor)
    for name in given:
        if name.split('.')[0] in _GROUPS and name not in _NAMES:
            hint = get_close_matches(name, _NAMES, 1)
            rule = f'is no parameter; did you mean {hint[0]}?' if hint else 'is no parameter'
            raise ConfigError(name, given[name].value, rule)
    return read_settings({row.name: declare(node, row) for row in TABLE})


def declare(node: Node, row: Parameter) -> Value:
    """
    Declare one parameter.

    :return: what was given for it, or its default
    :raises ConfigError: what was given is refused
    """
    try:
        value = node.declare_parameter(row.name, row.default, row.descriptor()).value
    except (InvalidParameterTypeException, InvalidParameterValueException) as error:
        given: Mapping[str, Any] = node._parameter_overrides  # noqa: SLF001  (no accessor)
        raise ConfigError(row.name, given[row.name].value, row.rule()) from error
    return row.check(value)


def given_values(parameters: Iterable[Any]) -> dict[str, Any]:
    """Pick the parameters of the table out of those that someone sets."""
    return {p.name: p.value for p in parameters if p.name in _NAMES}
