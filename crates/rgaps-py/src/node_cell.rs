//! What a node shares with its publishers, subscribers and samples.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use pyo3::prelude::*;
use rgaps::ForkGuard;
use rgaps::device::{Backend, Stream};
use rgaps::dynamic::DynamicSample;

use crate::stream::Named;
use crate::{errors, raw};

/// An object that is closed together with its node.
pub(crate) trait Child: Send + Sync {
    fn close(&self, py: Python<'_>);
}

/// What a node's publishers, subscribers and samples share.
pub(crate) struct NodeCell {
    node: Mutex<Option<rgaps::Node>>,
    backend: Arc<dyn Backend>,
    /// A forked child has neither the device's context nor the node's threads.
    fork: ForkGuard,
    named: Named,
    children: Mutex<Vec<Weak<dyn Child>>>,
}

impl NodeCell {
    /// The cell of a new node.
    pub(crate) fn new(node: rgaps::Node) -> std::io::Result<Self> {
        let backend = node.device().clone();
        let (node, fork) = (Mutex::new(Some(node)), ForkGuard::new()?);
        Ok(Self { node, backend, fork, named: Named::default(), children: Mutex::default() })
    }

    pub(crate) fn node(&self) -> PyResult<rgaps::Node> {
        let node = self.node.lock().unwrap_or_else(PoisonError::into_inner).clone();
        node.ok_or_else(|| errors::closed("node"))
    }

    pub(crate) fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    /// Whether this process made the node (and is not a forked child).
    pub(crate) fn is_owner(&self) -> bool {
        self.fork.is_owner()
    }

    /// A stream of another library; keeps the object that it was passed as.
    pub(crate) fn borrow_stream(&self, handle: u64, object: Option<&Bound<'_, PyAny>>) -> PyResult<Stream> {
        self.named.borrow(self.backend.as_ref(), handle, object)
    }

    /// Releases a message behind the work of the stream that it was taken on, or of the legacy default stream.
    pub(crate) fn release_behind(&self, message: DynamicSample, taken_on: Option<u64>) {
        let Some(cuda) = self.backend.as_cuda().filter(|_| self.is_owner()) else { return };
        // Even if this fails, the message is held until the stream's work is over.
        let _ = message.release_on(&raw::borrow_stream(cuda, taken_on.unwrap_or(0)));
    }

    pub(crate) fn adopt(&self, child: Weak<dyn Child>) {
        let mut children = self.children.lock().unwrap_or_else(PoisonError::into_inner);
        children.retain(|known| known.strong_count() > 0);
        children.push(child);
    }

    pub(crate) fn close(&self, py: Python<'_>) {
        let children = std::mem::take(&mut *self.children.lock().unwrap_or_else(PoisonError::into_inner));
        for child in children.iter().filter_map(Weak::upgrade) {
            child.close(py);
        }
        let node = self.node.lock().unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| drop(node));
    }
}
