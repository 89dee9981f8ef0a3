"""The examples in the documentation of the package's classes and their methods, run as a reader would type them."""

import doctest

import numpy as np
import pytest
import rgaps

CLASSES = [
    rgaps.Node,
    rgaps.Publisher,
    rgaps.Subscriber,
    rgaps.Loan,
    rgaps.Sample,
    rgaps.View,
    rgaps.Bytes,
    rgaps.Image,
    rgaps.PointField,
    rgaps.PointCloud,
    rgaps.Tensor,
    rgaps.PublisherQos,
    rgaps.SubscriberQos,
    rgaps.MessageHandle,
    rgaps.TopicNameError,
    rgaps.NoSpaceError,
    rgaps.StaleError,
]
METHODS = [
    (f"{shown.__name__}.{name}", member.__doc__)
    for shown in CLASSES
    for name, member in vars(shown).items()
    if not name.startswith("_") and ">>>" in (member.__doc__ or "")
]


def run(name, text):
    with rgaps.Node("examples") as node:
        names = {"rgaps": rgaps, "np": np, "node": node}
        test = doctest.DocTestParser().get_doctest(text, names, name, None, 0)
        assert test.examples
        said = []
        doctest.DocTestRunner(verbose=False).run(test, out=said.append)
        assert not said, "".join(said)


@pytest.mark.parametrize("shown", CLASSES, ids=lambda shown: shown.__name__)
def test_the_example_of_a_class_prints_what_it_says(shown):
    run(shown.__name__, shown.__doc__)


@pytest.mark.parametrize(("name", "text"), METHODS, ids=[name for name, _ in METHODS])
def test_the_example_of_a_method_prints_what_it_says(name, text):
    run(name, text)


def test_the_main_methods_have_examples():
    assert len(METHODS) > 20
