from setuptools import setup

NAME = 'rgaps_examples_py'

setup(
    name=NAME,
    version='0.1.0',
    packages=[NAME],
    data_files=[
        ('share/ament_index/resource_index/packages', ['resource/' + NAME]),
        ('share/' + NAME, ['package.xml']),
        ('share/' + NAME + '/launch', ['launch/scores.launch.py']),
    ],
    install_requires=['setuptools'],
    zip_safe=True,
    maintainer='RGAPS maintainers',
    maintainer_email='maintainers@rgaps.dev',
    description='A pipeline of rclpy nodes over RGAPS: tensor, model, result',
    license='Apache-2.0',
    entry_points={'console_scripts': ['features = rgaps_examples_py.features:main', 'model = rgaps_examples_py.model:main']},
)
