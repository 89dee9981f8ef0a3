//! The Python package `rgaps`: nodes, publishers, loans, subscribers and samples, and the array protocols through which numpy, torch and cupy
//! use payloads in place.
//!
//! ```text
//!   numpy, torch, cupy ──source.rs──▶ layout.rs ──▶ Publisher.push          (one copy)
//!                      ◀──view.rs──── Loan, Sample, field() of a cloud       (none)
//! ```
//!
//! `meta/` has the metadata classes. `errors` turns errors into exceptions that carry their numbers. `stream` reads stream arguments. `ros` has what
//! `rgaps.ros` shares with other ROS clients. `raw/` has
//! the only unsafe code: capsules, buffers, streams of other libraries, copies. asyncio, exceptions and QoS are Python code (python/rgaps).
//!
//! Invariants  PY1 a payload stays mapped while an array of it lives: each array holds the message, or the loan's pool. PY2 no wait or copy
//!             holds the GIL. PY3 no lock of this crate is held while a thread acquires the GIL.

mod annotations;
mod batch;
mod errors;
mod handle;
mod info;
mod layout;
mod loan;
mod loan_cell;
mod meta;
mod node;
mod node_cell;
mod publisher;
mod raw;
mod ros;
mod sample;
mod source;
mod stream;
mod subscriber;
mod view;

use pyo3::prelude::*;

/// The contents of the package `rgaps`.
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
    use crate::ros::ros;
    #[pymodule_export]
    use crate::sample::Sample;
    #[pymodule_export]
    use crate::subscriber::Subscriber;
    #[pymodule_export]
    use crate::view::View;
}
