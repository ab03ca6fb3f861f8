# SPDX-License-Identifier: Apache-2.0
"""
Start the planner.

    ros2 launch alpamayo_node planner.launch.py checkpoint:=/data/model context_directory:=/run/kv
"""

from ament_index_python.packages import get_package_share_path
from launch.actions import DeclareLaunchArgument
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node
from launch_ros.parameter_descriptions import ParameterValue

from launch import LaunchDescription

SHARE = get_package_share_path('alpamayo_node')

ARGUMENTS = (
    ('params_file', str(SHARE / 'params' / 'planner.yaml'), 'parameters of the planner'),
    ('namespace', '', 'of the node and its topics'),
    ('name', 'alpamayo_planner', 'of the node'),
    ('checkpoint', '', 'folder of config.json and the safetensors files'),
    ('context_directory', '', 'folder in which context files are looked for'),
    ('backend', 'torch', 'where the expert runs'),
    ('use_sim_time', 'false', 'take time from /clock'),
    ('autostart', 'true', 'configure and activate without a lifecycle manager'),
    ('log_level', 'info', 'debug, info, warn, error or fatal'),
    # Longer than a plan and an orderly close take: killing a process that owns a chip may leave
    # the chip unusable until it is reset.
    ('sigterm_timeout', '60', 'seconds from SIGINT to SIGTERM'),
    ('sigkill_timeout', '60', 'seconds from SIGTERM to SIGKILL'),
)


def generate_launch_description() -> LaunchDescription:
    """Describe one planner; each argument can be given on the command line."""
    declared = [
        DeclareLaunchArgument(name, default_value=default, description=description)
        for name, default, description in ARGUMENTS
    ]
    given = LaunchConfiguration
    planner = Node(
        package='alpamayo_node',
        executable='planner',
        name=given('name'),
        namespace=given('namespace'),
        parameters=[
            given('params_file'),
            {
                'checkpoint.directory': ParameterValue(given('checkpoint'), value_type=str),
                'context.directory': ParameterValue(given('context_directory'), value_type=str),
                'backend': ParameterValue(given('backend'), value_type=str),
                'use_sim_time': ParameterValue(given('use_sim_time'), value_type=bool),
                'autostart': ParameterValue(given('autostart'), value_type=bool),
            },
        ],
        arguments=['--ros-args', '--log-level', given('log_level')],
        output='screen',
        sigterm_timeout=given('sigterm_timeout'),
        sigkill_timeout=given('sigkill_timeout'),
    )
    return LaunchDescription([*declared, planner])
