//! The Python package `rgaps`: nodes, publishers, loans, subscribers and samples, and the array protocols by which numpy, torch and cupy
//! see their payloads where they lie.
//!
//! ```text
//!   numpy, torch, cupy ──source.rs──▶ layout.rs ──▶ Publisher.push          (one copy)
//!                      ◀──view.rs──── Loan, Sample, field() of a cloud       (none)
//! ```
//!
//! `meta/` are the metadata classes, `errors` turns errors into exceptions that carry their numbers, `stream` reads whatever stands for a
//! stream. `raw/` is the only unsafe code: capsules, buffers, streams of other libraries, copies. What is Python in python/rgaps is asyncio,
//! exceptions and QoS.
//!
//! Invariants  P1 a payload stays mapped while an array of it lives: each array has a holder of the message, or of the loan's pool. P2 nothing
//!             waits or copies with the GIL held. P3 no lock of ours is held while the GIL is asked for.

mod errors;
mod handle;
mod info;
mod layout;
mod loan;
mod meta;
mod node;
mod publisher;
mod raw;
mod sample;
mod source;
mod stream;
mod subscriber;
mod view;

use pyo3::prelude::*;

/// What the package `rgaps` shows.
#[pymodule]
mod _rgaps {
    #[pymodule_export]
    use crate::handle::MessageHandle;
    #[pymodule_export]
    use crate::info::{MessageInfo, PublisherStatistics, SubscriberStatistics, TopicSummary};
    #[pymodule_export]
    use crate::loan::Loan;
    #[pymodule_export]
    use crate::meta::bytes::Bytes;
    #[pymodule_export]
    use crate::meta::cloud::{PointCloud, PointField};
    #[pymodule_export]
    use crate::meta::image::Image;
    #[pymodule_export]
    use crate::meta::tensor::Tensor;
    #[pymodule_export]
    use crate::node::Node;
    #[pymodule_export]
    use crate::publisher::Publisher;
    #[pymodule_export]
    use crate::sample::Sample;
    #[pymodule_export]
    use crate::subscriber::Subscriber;
    #[pymodule_export]
    use crate::view::View;
}
