"""An rclpy executor that spins in its own thread."""

import threading

from rclpy.task import Future

# Seconds; a spin that takes longer hangs.
LONG = 60.0


class Spinning:
    """Spins from the start. Does not use `spin` and `shutdown`: the latter destroys the guard condition that it has triggered, and a thread that is
    just about to wait then waits without it, for ever (seen with rclpy 10.0.10)."""

    def __init__(self, executor):
        self._executor, self._end = executor, Future()
        self._thread = threading.Thread(target=executor.spin_until_future_complete, args=(self._end,))
        self._thread.start()

    def end(self):
        """Ends it after the running callback. rclpy allows destroying the entities that it waits for only after that."""
        if not self._end.done():
            self._end.set_result(None)
            # Something to do: Humble's single-threaded executor looks at the future only after a callback.
            self._executor.create_task(lambda: None)
        self._thread.join(LONG)
        assert not self._thread.is_alive(), "the executor spins on"
        self._executor.shutdown()
