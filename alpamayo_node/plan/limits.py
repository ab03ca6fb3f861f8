# SPDX-License-Identifier: Apache-2.0
"""What the limit classes of this layer share: each number is finite and none is negative."""

from dataclasses import fields
import math
from typing import Any

from alpamayo_node.errors import ConfigError


def require_finite_limits(section: str, limits: Any) -> None:
    """
    Refuse a limit that could never be applied.

    :param section: name of the parameter group, for the message
    :param limits: dataclass instance; its float fields are looked at
    :raises ConfigError: a float field is no number, not finite or negative
    """
    for item in fields(limits):
        value = getattr(limits, item.name)
        if item.type is float and not _is_limit(value):
            raise ConfigError(f'{section}.{item.name}', value, 'must be finite and not negative')


def _is_limit(value: object) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value) and value >= 0  # type: ignore[arg-type, operator]
