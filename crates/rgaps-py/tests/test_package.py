"""The package itself: its contents, its type stubs and docstrings, and its examples."""

import ast
import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest
import rgaps
from conftest import LONG, REPOSITORY

HERE = Path(rgaps.__file__).parent
STUBS = ast.parse((HERE / "__init__.pyi").read_text(encoding="utf-8"))
CLASSES = {node.name: node for node in STUBS.body if isinstance(node, ast.ClassDef)}


def stub_members(name):
    """Methods and properties in the stubs, including base classes."""
    found = {}
    for base in CLASSES[name].bases:
        if isinstance(base, ast.Name) and base.id in CLASSES:
            found |= stub_members(base.id)
    return found | {node.name: node for node in CLASSES[name].body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}


def test_the_package_brings_its_manager_and_its_types():
    assert os.access(HERE / "rgapsd", os.X_OK) and (HERE / "py.typed").exists()
    assert (HERE / "_rgaps.abi3.so").exists()


def test_stubs_and_package_have_the_same_names():
    imported = {alias.asname for node in STUBS.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    public = {name for name in CLASSES if not name.startswith("_")} | (imported - {None})
    assert public == set(rgaps.__all__)
    assert all(hasattr(rgaps, name) for name in rgaps.__all__)
    for name in (name for name in CLASSES if not name.startswith("_")):
        kind, stubs = getattr(rgaps, name), stub_members(name)
        real = {member for member in vars(kind) if not member.startswith("_")}
        assert real == {member for member in stubs if not member.startswith("_")}, name
        assert all(hasattr(kind, member) or member == "__init__" for member in stubs), name


def test_stubs_and_package_have_the_same_parameters():
    count = 0
    for name in (name for name in CLASSES if not name.startswith("_")):
        for member, stub in stub_members(name).items():
            real = inspect.getattr_static(getattr(rgaps, name), member, None)
            is_property = any(isinstance(mark, (ast.Name, ast.Attribute)) for mark in stub.decorator_list)
            is_property &= "staticmethod" not in ast.dump(ast.Module(stub.decorator_list, []))
            if is_property or member.startswith("__") and member not in ("__init__", "__dlpack__", "__array__"):
                continue
            real = getattr(rgaps, name) if member == "__init__" else getattr(getattr(rgaps, name), member)
            try:
                signature = inspect.signature(real)
            except ValueError:
                assert member == "__init__", f"{name}.{member} has no signature"
                continue
            names = [parameter for parameter in signature.parameters if parameter != "self"]
            arguments = stub.args.posonlyargs + stub.args.args + stub.args.kwonlyargs
            stubbed = [argument.arg for argument in arguments if argument.arg != "self"]
            stubbed += [stub.args.kwarg.arg] if stub.args.kwarg else []
            assert names == stubbed, f"{name}.{member}"
            count += 1
    assert count > 30


def test_everything_public_has_a_docstring():
    for name in rgaps.__all__:
        kind = getattr(rgaps, name)
        assert (kind.__doc__ or "").strip(), name
        assert name.endswith("Error") or kind.__module__.startswith("rgaps"), name
        for member in (member for member in vars(kind) if not member.startswith("_")):
            # Fields of dataclasses and exceptions are documented in the source, not in __doc__.
            if callable(getattr(kind, member)) or type(inspect.getattr_static(kind, member)).__name__ == "getset_descriptor":
                assert (inspect.getattr_static(kind, member).__doc__ or "").strip(), f"{name}.{member}"


def example(path, *arguments):
    command = [sys.executable, REPOSITORY / "examples" / path, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def said_by(process):
    said, errors = process.communicate(timeout=LONG)
    assert process.returncode == 0, errors
    return said


@pytest.mark.parametrize("kind", ["bytes", "image", "point_cloud", "tensor"])
def test_the_exchange_carries_every_kind_unharmed(kind):
    taker = example("exchange/exchange.py", "sub", kind, "exchange", 5)
    assert taker.stdout.readline() == "ready\n", taker.stderr.read()
    giver = example("exchange/exchange.py", "pub", kind, "exchange", 5)
    assert said_by(taker) == f"took 5 {kind} messages\n"
    assert said_by(giver) == f"published 5 {kind} messages\n"


def test_the_exchange_refuses_wrong_arguments_and_wrong_bytes():
    process = example("exchange/exchange.py", "sub", "sound", "exchange", 5)
    assert "usage: exchange.py pub|sub bytes|image|point_cloud|tensor TOPIC COUNT" in process.communicate(timeout=LONG)[1]
    assert process.returncode == 1
    with rgaps.Node("lies") as node:
        publisher = node.publisher("exchange", rgaps.Bytes)
        process = example("exchange/exchange.py", "sub", "bytes", "exchange", 1)
        assert process.stdout.readline() == "ready\n"
        publisher.push(bytes(1000), frame_id="exchange")
        assert "message 0 has wrong bytes" in process.communicate(timeout=LONG)[1] and process.returncode == 1


def test_the_brightness_meter_reads_pictures():
    process = example("picture/brightness.py", 2)
    assert process.stdout.readline() == "ready\n"
    with rgaps.Node("camera") as node:
        publisher = node.publisher("camera/front", rgaps.Image)
        publisher.push(bytes([10]) * 300, rgaps.Image(10, 10))
        publisher.push(bytes([20]) * 300, rgaps.Image(10, 10))
        assert said_by(process) == "picture 1: 10.0 (in place)\npicture 2: 20.0 (in place)\n"


def test_the_model_scores_features():
    numpy = pytest.importorskip("numpy")
    process = example("tensor/model.py", 1)
    assert process.stdout.readline().startswith("ready: ")
    with rgaps.Node("camera") as node:
        scores = node.subscriber("scores", rgaps.Tensor)
        features = numpy.zeros((1, 3, 32, 32), numpy.float32)
        features.reshape(-1)[:17] = numpy.arange(17) - 8
        node.publisher("features", rgaps.Tensor).push(features, stamp=7)
        result = scores.wait(LONG)
        weights = (numpy.arange(10 * 3072, dtype=numpy.float32).reshape(10, 3072) % 17 - 8) / 3072
        expected = numpy.maximum(features.reshape(1, -1) @ weights.T, 0)
        assert result.meta.stamp == 7 and numpy.allclose(numpy.asarray(result), expected)
        assert said_by(process) == f"features 1: class {int(expected.argmax())}\n"
