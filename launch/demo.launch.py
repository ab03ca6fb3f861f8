# SPDX-License-Identifier: Apache-2.0
"""
Start the planner and a stand-in for the text model that drives a circle.

    ros2 launch alpamayo_node demo.launch.py checkpoint:=ckpt context_directory:=contexts
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
    ('namespace', '', 'of both nodes and their topics'),
    ('checkpoint', '', 'folder of config.json and the safetensors files'),
    ('context_directory', '', 'folder of the context files'),
    ('rate_hz', '2.0', 'contexts per second'),
    ('count', '0', 'contexts until the stand-in ends; 0: no end'),
    ('motion', 'circle', 'straight, circle, stop_and_go or standstill'),
    ('speed_mps', '8.0', 'of the vehicle'),
    ('wait_for_plan', 'true', 'announce only after the last answer came'),
)


def generate_launch_description() -> LaunchDescription:
    """Describe planner and stand-in in one namespace."""
    declared = [
        DeclareLaunchArgument(name, default_value=default, description=description)
        for name, default, description in ARGUMENTS
    ]
    given = LaunchConfiguration
    contexts = ParameterValue(given('context_directory'), value_type=str)
    planner = Node(
        package='alpamayo_node',
        executable='planner',
        namespace=given('namespace'),
        parameters=[
            given('params_file'),
            {
                'checkpoint.directory': ParameterValue(given('checkpoint'), value_type=str),
                'context.directory': contexts,
            },
        ],
        output='screen',
        # As in planner.launch.py: an orderly close must never be cut short.
        sigterm_timeout='60',
        sigkill_timeout='60',
    )
    stand_in = Node(
        package='alpamayo_node',
        executable='stand_in',
        namespace=given('namespace'),
        parameters=[
            {
                'context.directory': contexts,
                'rate_hz': ParameterValue(given('rate_hz'), value_type=float),
                'count': ParameterValue(given('count'), value_type=int),
                'motion': ParameterValue(given('motion'), value_type=str),
                'speed_mps': ParameterValue(given('speed_mps'), value_type=float),
                'wait_for_plan': ParameterValue(given('wait_for_plan'), value_type=bool),
            }
        ],
        output='screen',
    )
    return LaunchDescription([*declared, planner, stand_in])
