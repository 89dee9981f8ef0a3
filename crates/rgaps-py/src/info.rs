//! Information about messages, publishers and topics: read-only values.

use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// Makes attributes available as items too, so that `dict(value)` works.
macro_rules! mapping {
    (
        $(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty),* $(,)? } $({ $($more:tt)* })?
    ) => {
        $(#[$doc])*
        #[pyclass(frozen, eq, hash, module = "rgaps")]
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        pub(crate) struct $name {
            $($(#[$field_doc])* #[pyo3(get)] pub(crate) $field: $type,)*
        }

        #[pymethods]
        impl $name {
            /// The names of the attributes.
            fn keys(&self) -> Vec<&'static str> {
                vec![$(stringify!($field)),*]
            }

            fn __getitem__<'py>(slf: &Bound<'py, Self>, name: &str) -> PyResult<Bound<'py, PyAny>> {
                match name {
                    $(stringify!($field))|* => slf.getattr(name),
                    _ => Err(pyo3::exceptions::PyKeyError::new_err(name.to_owned())),
                }
            }

            fn __len__(&self) -> usize {
                self.keys().len()
            }

            $($($more)*)?

            fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
                let mut parts = Vec::new();
                for name in slf.get().keys() {
                    parts.push(format!("{name}={}", slf.getattr(name)?.repr()?));
                }
                Ok(format!("{}({})", stringify!($name), parts.join(", ")))
            }
        }
    };
}
pub(crate) use mapping;

mapping! {
    /// Counters of a publisher and its pool.
    PublisherStatistics {
        /// Messages published.
        published: u64,
        /// Their bytes.
        published_bytes: u64,
        /// Loans that were refused or timed out.
        refused: u64,
        /// Bytes of the pool.
        pool_bytes: u64,
        /// Bytes of it in use.
        used_bytes: u64,
        /// Messages that subscribers still read or history keeps.
        outstanding: u64,
    }
}

mapping! {
    /// Counters of a subscriber.
    SubscriberStatistics {
        /// Messages taken.
        taken: u64,
        /// Messages dropped because they were too old or their space was needed, or lost on the way from another host.
        lost: u64,
        /// Messages whose producer died before their bytes were written.
        poisoned: u64,
        /// Messages skipped because their metadata contradicts itself.
        malformed: u64,
        /// Messages held now.
        held: u64,
        /// Bytes copied for this subscriber alone: 0 unless the CPU read device memory.
        copied_bytes: u64,
    }
}

mapping! {
    /// A topic, as shown by `rgaps topic list`.
    TopicSummary {
        /// Its fully qualified name.
        name: String,
        /// Its type.
        type_name: String,
        /// Publishers on this host.
        publishers: u32,
        /// Subscribers on this host.
        subscribers: u32,
        /// Hosts that publish it.
        publishing_hosts: Vec<String>,
        /// Hosts that subscribe to it.
        subscribing_hosts: Vec<String>,
        /// Why publishers and subscribers of the topic do not match.
        mismatches: Vec<String>,
        /// State of the links, one line each.
        links: Vec<String>,
        /// Bytes of memory that the topic uses on this host.
        resident_bytes: u64,
        /// Messages that the subscribers of this host have lost.
        lost: u64,
    }
}

mapping! {
    /// Everything about a message besides payload and metadata. Times are ns since 1970 on the clock of the host where the event happened, or 0.
    MessageInfo {
        /// Position in the topic's order on this host.
        position: u64,
        /// Identity of the publisher.
        publisher: u64,
        /// The publisher's sequence number of the message, from 1.
        sequence: u64,
        /// Host of the publisher, 16 bytes.
        source_host: Identity,
        /// Bytes of the message.
        bytes: u64,
        /// "loaned" (in place) or "pushed" (copied once).
        origin: &'static str,
        /// How it reached this host: "in place", "tcp" or "rdma".
        route: &'static str,
        /// Why no better route was taken.
        route_reason: &'static str,
        /// Copies of the payload on its way: by push, to staging, and into this host's pool.
        copies: u32,
        /// Copies into the block: by a push, or of a loan that was filled in other memory.
        pushed_copies: u8,
        /// Copies to staging.
        staged_copies: u8,
        /// Copies from the receive ring into the pool.
        pooled_copies: u8,
        /// When it was published.
        published_ns: u64,
        /// When the manager took it to send it.
        staged_ns: u64,
        /// When its first byte was given to the link.
        sent_ns: u64,
        /// When its last byte was in the receive ring.
        landed_ns: u64,
        /// When its last byte was in this host's pool.
        pooled_ns: u64,
        /// When this subscriber took it.
        taken_ns: u64,
    }
}

/// Identity of a host or of a topic's segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Identity(pub(crate) [u8; 16]);

impl<'py> IntoPyObject<'py> for Identity {
    type Target = PyBytes;
    type Output = Bound<'py, PyBytes>;
    type Error = std::convert::Infallible;

    fn into_pyobject(self, py: Python<'py>) -> Result<Self::Output, Self::Error> {
        Ok(PyBytes::new(py, &self.0))
    }
}

impl MessageInfo {
    pub(crate) fn of(info: &rgaps::MessageInfo, taken_ns: u64) -> Self {
        let rgaps::Copies { pushed, staged, pooled } = info.copies;
        let stamps = info.stamps;
        Self {
            position: info.position,
            publisher: info.publisher,
            sequence: info.sequence,
            source_host: Identity(info.source_host),
            bytes: info.bytes,
            origin: info.origin.name(),
            route: info.route.name(),
            route_reason: info.route_reason.name(),
            copies: u32::from(pushed) + u32::from(staged) + u32::from(pooled),
            pushed_copies: pushed,
            staged_copies: staged,
            pooled_copies: pooled,
            published_ns: stamps.published,
            staged_ns: stamps.staged,
            sent_ns: stamps.sent,
            landed_ns: stamps.landed,
            pooled_ns: stamps.pooled,
            taken_ns,
        }
    }
}

impl From<rgaps::PublisherStatistics> for PublisherStatistics {
    fn from(found: rgaps::PublisherStatistics) -> Self {
        let rgaps::PublisherStatistics { published, published_bytes, refused, pool_bytes, used_bytes, outstanding } =
            found;
        Self { published, published_bytes, refused, pool_bytes, used_bytes, outstanding }
    }
}

impl From<rgaps::SubscriberStatistics> for SubscriberStatistics {
    fn from(found: rgaps::SubscriberStatistics) -> Self {
        let rgaps::SubscriberStatistics { taken, lost, poisoned, malformed, held, copied_bytes } = found;
        Self { taken, lost, poisoned, malformed, held, copied_bytes }
    }
}

impl From<rgaps::TopicSummary> for TopicSummary {
    fn from(found: rgaps::TopicSummary) -> Self {
        Self {
            name: found.key.name().to_owned(),
            type_name: found.type_name,
            publishers: found.publishers,
            subscribers: found.subscribers,
            publishing_hosts: found.publishing_hosts,
            subscribing_hosts: found.subscribing_hosts,
            mismatches: found.mismatches,
            links: found.links,
            resident_bytes: found.resident_bytes,
            lost: found.lost,
        }
    }
}
