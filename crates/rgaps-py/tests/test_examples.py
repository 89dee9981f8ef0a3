"""The examples in the documentation of the package's classes, run as a reader would type them."""

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
]


@pytest.mark.parametrize("shown", CLASSES, ids=lambda shown: shown.__name__)
def test_the_example_of_a_class_prints_what_it_says(shown):
    with rgaps.Node("examples") as node:
        names = {"rgaps": rgaps, "np": np, "node": node}
        test = doctest.DocTestParser().get_doctest(shown.__doc__, names, shown.__name__, None, 0)
        assert test.examples
        said = []
        doctest.DocTestRunner(verbose=False).run(test, out=said.append)
        assert not said, "".join(said)
