"""Byte arrays of ROS messages in a pool of RGAPS, as arrays of numpy, torch and cupy (docs/rosidl-buffer.md).

    image.data = rgaps_buffer_backend.allocate_buffer(image.step * image.height)
    with rgaps_buffer_backend.from_output_buffer(image.data, stream) as pixels:
        torch.from_dlpack(pixels).fill_(7)
    publisher.publish(image)

    def callback(image):
        with rgaps_buffer_backend.from_input_buffer(image.data, stream) as pixels:
            detect(torch.from_dlpack(pixels))

`stream` is a stream of torch or cupy, an object with `__cuda_stream__`, a number, or None for the default stream. It must live as long as the arrays.
Where there is no GPU the bytes are in host memory: leave the stream out, and use `numpy.asarray(pixels)`.
"""

from ._rgaps_buffer_backend import Error
from ._rgaps_buffer_backend import ReadHandle
from ._rgaps_buffer_backend import WriteHandle
from ._rgaps_buffer_backend import allocate_buffer
from ._rgaps_buffer_backend import from_input_buffer
from ._rgaps_buffer_backend import from_output_buffer
from ._rgaps_buffer_backend import statistics

__all__ = ['Error', 'ReadHandle', 'WriteHandle', 'allocate_buffer', 'from_input_buffer', 'from_output_buffer', 'statistics']
