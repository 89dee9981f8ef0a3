//! Looks up in a topic's segment, without a slot, which messages and publishers the core knows.

use std::sync::Mutex;

use rgaps::{Node, NodeError, Observer};

use crate::lock::lock;

/// Opens the segment on first use: the topic may be made later than its ROS entities.
pub(crate) struct Observed {
    node: Node,
    topic: String,
    observer: Mutex<Option<Observer>>,
}

impl Observed {
    pub(crate) fn new(node: Node, topic: String) -> Self {
        Self { node, topic, observer: Mutex::default() }
    }

    /// Runs a lookup on the segment.
    pub(crate) fn look<R>(&self, at: impl FnOnce(&Observer) -> R) -> Result<R, NodeError> {
        let mut observer = lock(&self.observer);
        if observer.is_none() {
            *observer = Some(self.node.observe(&self.topic)?.0);
        }
        match observer.as_ref() {
            Some(observer) => Ok(at(observer)),
            None => unreachable!("it was opened above"),
        }
    }

    /// Makes the next lookup open the segment again: a manager that starts with no state makes a new one.
    pub(crate) fn forget(&self) {
        *lock(&self.observer) = None;
    }
}
