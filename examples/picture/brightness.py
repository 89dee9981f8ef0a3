"""A subscriber: takes pictures and computes their mean brightness in place.

`python examples/picture/brightness.py`; ends after the given number of pictures, or when none arrives for ten seconds. Publish pictures with
`cargo run -p rgaps --example camera`, or from `rgaps pub camera/front --input examples/data --loop`.
"""

import sys

import numpy as np
import rgaps

pictures = int(sys.argv[1]) if len(sys.argv) > 1 else 10
with rgaps.Node("brightness") as node:
    subscriber = node.subscriber("camera/front", rgaps.Image)
    print("ready", flush=True)
    for _ in range(pictures):
        sample = subscriber.wait(timeout=10.0)
        if sample is None:
            sys.exit("no picture within ten seconds")
        with sample:  # released at the end of the block
            print(f"picture {sample.info.sequence}: {np.asarray(sample).mean():.1f} ({sample.info.route})", flush=True)
