# SPDX-License-Identifier: Apache-2.0
"""Describe the package to colcon: modules, executables, and the files that ROS tools look for."""

from glob import glob

from setuptools import find_packages
from setuptools import setup

NAME = 'alpamayo_node'

setup(
    name=NAME,
    version='0.1.0',
    description='ROS 2 planning node for the action expert of Alpamayo 2 Super',
    license='Apache-2.0',
    maintainer='alpamayo_node maintainers',
    maintainer_email='maintainers@alpamayo-node.dev',
    packages=find_packages(include=[NAME, f'{NAME}.*']),
    package_data={NAME: ['py.typed']},
    data_files=[
        ('share/ament_index/resource_index/packages', [f'resource/{NAME}']),
        (f'share/{NAME}', ['package.xml']),
        (f'share/{NAME}/launch', sorted(glob('launch/*.launch.py'))),
        (f'share/{NAME}/params', sorted(glob('params/*.yaml'))),
    ],
    install_requires=['setuptools'],
    extras_require={'test': ['pytest']},
    zip_safe=False,
    entry_points={
        'console_scripts': [
            'alpamayo = alpamayo_node.tools.cli:main',
            'planner = alpamayo_node.executables:planner',
            'stand_in = alpamayo_node.executables:stand_in',
        ],
    },
)
