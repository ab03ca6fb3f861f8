# SPDX-License-Identifier: Apache-2.0
"""
Draw plans: the path from above, and speed, acceleration and curvature over time.

Colours are Okabe and Ito's, which colour-blind people tell apart; plans are also told apart by the
order in which they fade.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
import numpy as np
from numpy.typing import NDArray

mpl.use('Agg')

BLUE, ORANGE, GREEN, GREY = '#0072b2', '#e69f00', '#009e73', '#999999'
_DPI = 110
_FADED = 0.25


@dataclass(frozen=True)
class PlottedPlan:
    """One plan in the fixed frame; arrays start with the state at t0 and are (N + 1,) float64."""

    label: str
    x_m: NDArray[np.float64]
    y_m: NDArray[np.float64]
    time_s: NDArray[np.float64]
    """Since t0."""
    speed_mps: NDArray[np.float64]
    accel_mps2: NDArray[np.float64]
    """(N,), over the intervals."""
    curvature_1pm: NDArray[np.float64]
    """(N,), over the intervals."""


def plot_plans(plans: Sequence[PlottedPlan], path: Path, title: str) -> None:
    """
    Draw plans into a PNG; the last one stands out, the others are pale.

    :param plans: at least one, oldest first
    :param path: of the PNG; its folder must exist
    :param title: of the whole picture
    """
    figure = Figure(figsize=(11.0, 6.2), layout='constrained')
    above, *profiles = figure.subplot_mosaic(
        [['path', 'speed'], ['path', 'accel'], ['path', 'curvature']], width_ratios=[1.15, 1.0]
    ).values()
    figure.suptitle(title)
    for i, plan in enumerate(plans):
        is_newest = i == len(plans) - 1
        _draw_path(above, plan, is_newest=is_newest)
        _draw_profiles(profiles, plan, is_newest=is_newest)
    above.set_aspect('equal', adjustable='datalim')
    above.set(title='Path, fixed frame', xlabel='x [m]', ylabel='y [m]')
    above.legend(loc='best', fontsize='small')
    for axes, (name, unit) in zip(
        profiles, (('Speed', 'm/s'), ('Acceleration', 'm/s²'), ('Curvature', '1/m')), strict=True
    ):
        axes.set(ylabel=f'{name} [{unit}]', xlim=(0.0, None))
        axes.grid(visible=True, alpha=0.3)
    profiles[-1].set_xlabel('Time since t0 [s]')
    above.grid(visible=True, alpha=0.3)
    figure.savefig(path, dpi=_DPI)


def _draw_path(axes: Axes, plan: PlottedPlan, *, is_newest: bool) -> None:
    if not is_newest:
        axes.plot(plan.x_m, plan.y_m, color=GREY, alpha=_FADED, linewidth=1.0)
        return
    axes.plot(plan.x_m, plan.y_m, color=BLUE, linewidth=2.5, label=plan.label)
    i_seconds = np.searchsorted(plan.time_s, np.arange(1.0, plan.time_s[-1] + 1e-9) - 1e-9)
    axes.plot(
        plan.x_m[i_seconds],
        plan.y_m[i_seconds],
        'o',
        color=ORANGE,
        markersize=5,
        label='every 1 s',
    )
    axes.plot(plan.x_m[0], plan.y_m[0], '^', color=GREEN, markersize=10, label='ego vehicle at t0')


def _draw_profiles(profiles: Sequence[Axes], plan: PlottedPlan, *, is_newest: bool) -> None:
    color, alpha, width = (BLUE, 1.0, 2.0) if is_newest else (GREY, _FADED, 1.0)
    speed, accel, curvature = profiles
    speed.plot(plan.time_s, plan.speed_mps, color=color, alpha=alpha, linewidth=width)
    for axes, values in ((accel, plan.accel_mps2), (curvature, plan.curvature_1pm)):
        axes.stairs(values, plan.time_s, baseline=None, color=color, alpha=alpha, linewidth=width)
