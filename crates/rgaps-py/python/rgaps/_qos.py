"""Quality of service, as in ROS 2. The defaults are ROS 2's."""

from dataclasses import dataclass, replace
from typing import Any, Optional, Union


def _one_of(name: str, value: object, words: "tuple[str, ...]") -> None:
    if value not in words:
        raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(words)}")


@dataclass(frozen=True)
class PublisherQos:
    """What a publisher offers.

    >>> qos = rgaps.PublisherQos(durability="transient_local", history_depth=1)
    >>> publisher = node.publisher("map", rgaps.Image, qos)
    """

    reliability: str = "reliable"
    """"reliable" or "best_effort", for matching only: every link sends unacknowledged messages again after an interruption."""
    durability: str = "volatile"
    """"volatile" or "transient_local": whether late joiners receive the last `history_depth` messages. A full pool gives up the oldest of them."""
    history_depth: int = 10
    """How many of the last messages are kept for late joiners, and for a link to send again after an interruption."""
    exhaustion: str = "wait"
    """What to do when the pool is full, and giving up history is not enough: "wait" for at most `timeout`, "drop_oldest" unread messages, or "refuse"
    (raise at once)."""
    timeout: float = 1.0
    """Seconds that "wait" waits."""
    pool_bytes: Optional[int] = None
    """Bytes of the publisher's pool; None uses the configured size."""
    flow_control: bool = True
    """Whether links wait for slow hosts. If False, a slow host's oldest messages are overwritten and counted."""

    def __post_init__(self) -> None:
        _one_of("reliability", self.reliability, ("reliable", "best_effort"))
        _one_of("durability", self.durability, ("volatile", "transient_local"))
        _one_of("exhaustion", self.exhaustion, ("wait", "drop_oldest", "refuse"))
        if not 0 <= self.timeout < 2**53 / 1000:
            raise ValueError(f"timeout is {self.timeout!r}; it must be a number of seconds")


@dataclass(frozen=True)
class SubscriberQos:
    """What a subscriber requests.

    >>> newest = rgaps.SubscriberQos(reliability="best_effort", depth=1)
    >>> subscriber = node.subscriber("camera/front", rgaps.Image, newest)
    """

    reliability: str = "reliable"
    """"reliable" or "best_effort"."""
    durability: str = "volatile"
    """"volatile" or "transient_local": whether it receives messages published before it joined."""
    depth: Optional[int] = 10
    """How many unread messages are kept. None keeps all; publishers then wait for this subscriber up to their time-out."""

    def __post_init__(self) -> None:
        _one_of("reliability", self.reliability, ("reliable", "best_effort"))
        _one_of("durability", self.durability, ("volatile", "transient_local"))


def merged(class_name: str, qos: Any, **fields: Any) -> Union[PublisherQos, SubscriberQos]:
    """The given QoS, or the default, with these fields replaced."""
    kind = {"PublisherQos": PublisherQos, "SubscriberQos": SubscriberQos}[class_name]
    if qos is None:
        return kind(**fields)
    if not isinstance(qos, kind):
        raise TypeError(f"qos must be an rgaps.{class_name}, not {type(qos)}")
    return replace(qos, **fields)
