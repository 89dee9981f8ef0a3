//! A subscriber's requests to the manager that are open, or whose answer is unused (pools.rs).

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use rgaps_control::PublisherSlot;

use crate::endpoint::async_request::AsyncRequest;

/// Whether a caller may wait for the manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Blocking,
    Polling,
}

/// The subject of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Subject {
    Event,
    Pool(PublisherSlot),
}

/// Requests that are open, or whose answer is unused.
#[derive(Debug, Default)]
pub(crate) struct OpenRequests(pub(crate) Mutex<HashMap<Subject, Arc<AsyncRequest>>>);

/// The result of a request.
pub(crate) enum RequestState<R> {
    /// This call took the answer.
    Taken(R),
    /// Another call took the answer.
    TakenByAnother,
    /// There is no answer yet.
    Open,
}
