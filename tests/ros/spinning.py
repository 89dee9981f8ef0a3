"""An rclpy executor that spins in a thread of its own."""

import threading

from rclpy.task import Future

# Seconds; what takes longer hangs.
LONG = 60.0


class Spinning:
    """Spins from the start. Not by `spin` and `shutdown`: that one destroys the guard condition which it has triggered, and a thread that just
    begins to wait then waits without it, for ever (seen with rclpy 10.0.10)."""

    def __init__(self, executor):
        self._executor, self._end = executor, Future()
        self._thread = threading.Thread(target=executor.spin_until_future_complete, args=(self._end,))
        self._thread.start()

    def end(self):
        """Ends it after the callback that runs. Only then rclpy withstands that what it waits for is destroyed."""
        if not self._end.done():
            self._end.set_result(None)
        self._thread.join(LONG)
        assert not self._thread.is_alive(), "the executor spins on"
        self._executor.shutdown()
