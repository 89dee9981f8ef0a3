//! What a loan shares with its arrays.
//!
//! Invariants  LC1 the block is given back once: by publishing, by discarding, or when its last array is gone. LC2 numpy arrays of it are
//!             writable until then and not after.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyWeakrefMethods, PyWeakrefReference};
use rgaps::PublishError;
use rgaps::device::Stream;
use rgaps::dlpack::{ManagedTensor, UnmanagedTensor};
use rgaps::dynamic::DynamicLoan;

use crate::handle::MessageHandle;
use crate::node_cell::NodeCell;
use crate::raw::Buffer;
use crate::{errors, raw};

/// How long to wait until one stream can be ordered behind another.
const DEVICE_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(10);

const OVER: &str = "the loan is published or discarded: this program may no longer write its block";

/// State shared by a loan and its arrays.
pub(crate) struct LoanCell {
    loan: Mutex<Option<DynamicLoan>>,
    pub(crate) node: Arc<NodeCell>,
    /// Weak references to the numpy arrays made of it.
    arrays: Mutex<Vec<Py<PyWeakrefReference>>>,
    /// Streams that were given the block's address.
    streams: Mutex<Vec<u64>>,
    /// CPU memory that stands for a block that the CPU cannot reach.
    staging: OnceLock<Py<PyByteArray>>,
}

impl LoanCell {
    pub(crate) fn new(loan: DynamicLoan, node: Arc<NodeCell>) -> Self {
        Self {
            loan: Mutex::new(Some(loan)),
            node,
            arrays: Mutex::default(),
            streams: Mutex::default(),
            staging: OnceLock::new(),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Option<DynamicLoan>> {
        self.loan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn with<R>(&self, look: impl FnOnce(&mut DynamicLoan) -> Result<R, PublishError>) -> PyResult<R> {
        // Unlock before making an exception: that runs Python code, which may switch threads.
        let looked = self.lock().as_mut().map(look);
        match looked {
            Some(found) => found.map_err(|error| errors::of_publish(&error)),
            None => Err(errors::released(OVER)),
        }
    }

    /// A DLPack tensor that holds the loan, and after publication its pool.
    pub(crate) fn manage(cell: &Arc<Self>, described: &UnmanagedTensor) -> PyResult<ManagedTensor> {
        let pool = cell.with(|loan| Ok(loan.to_dlpack(described)))?;
        Ok(described.manage((cell.clone(), pool)))
    }

    pub(crate) fn note_stream(&self, handle: u64) {
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        if !streams.contains(&handle) {
            streams.push(handle);
        }
    }

    /// Whether a stream was given the block's address.
    pub(crate) fn has_streams(&self) -> bool {
        !self.streams.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    pub(crate) fn note_array(&self, array: &Bound<'_, PyAny>) -> PyResult<()> {
        let weak = PyWeakrefReference::new(array)?.unbind();
        self.arrays.lock().unwrap_or_else(PoisonError::into_inner).push(weak);
        Ok(())
    }

    /// CPU memory that is copied into the block when the loan is published.
    pub(crate) fn staging<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyByteArray>> {
        if let Some(staging) = self.staging.get() {
            return Ok(staging.bind(py).clone());
        }
        let bytes = self.with(|loan| Ok(loan.meta().payload_bytes()))?;
        let made = py.get_type::<PyByteArray>().call1((bytes,))?.cast_into::<PyByteArray>()?;
        Ok(self.staging.get_or_init(|| made.unbind()).bind(py).clone())
    }

    /// Makes numpy arrays of the block read-only.
    pub(crate) fn close_arrays(&self, py: Python<'_>) -> PyResult<()> {
        let lock = || self.arrays.lock().unwrap_or_else(PoisonError::into_inner);
        let mut arrays = std::mem::take(&mut *lock());
        let mut closed = Ok(());
        while closed.is_ok()
            && let Some(weak) = arrays.pop()
        {
            if let Some(array) = weak.bind(py).upgrade() {
                closed = array.getattr("flags").and_then(|flags| flags.setattr("writeable", false));
            }
            if closed.is_err() {
                arrays.push(weak);
            }
        }
        // Those that are still open, so that they are closed the next time.
        lock().append(&mut arrays);
        closed
    }

    pub(crate) fn take(&self) -> PyResult<DynamicLoan> {
        let loan = self.lock().take();
        loan.ok_or_else(|| errors::released(OVER))
    }

    /// Opens the loan again after `take`.
    pub(crate) fn put_back(&self, loan: DynamicLoan) {
        *self.lock() = Some(loan);
    }

    /// The CPU memory that is to be copied into the block, if there is any.
    pub(crate) fn staged(&self, py: Python<'_>) -> PyResult<Option<Buffer>> {
        self.staging.get().map(|staging| Buffer::of(staging.bind(py).as_any())).transpose()
    }

    pub(crate) fn publish(&self, py: Python<'_>, stream: Option<Stream>) -> PyResult<MessageHandle> {
        let mut loan = self.take()?;
        self.close_arrays(py)?;
        let staged = self.staged(py)?;
        let stream = match stream {
            Some(stream) => Some(stream),
            None => self.last_stream()?,
        };
        let published = py.detach(move || {
            if let Some(staged) = &staged {
                let block = loan.bytes_mut();
                raw::with_bytes(staged.address(), block.len() as u64, |bytes| block.copy_from_slice(bytes));
            }
            match &stream {
                Some(stream) => loan.publish_on(stream),
                None => loan.publish(),
            }
        });
        published.map(Into::into).map_err(|error| errors::of_publish(&error))
    }

    /// The stream to publish on if the caller named none: the last that got the block's address, ordered behind the others.
    fn last_stream(&self) -> PyResult<Option<Stream>> {
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(last) = streams.pop() else { return Ok(None) };
        let last = self.node.borrow_stream(last, None)?;
        for other in streams {
            let event = self.node.borrow_stream(other, None)?.record();
            last.wait(&event, DEVICE_TIMEOUT).map_err(|error| errors::of_device(&error))?;
        }
        Ok(Some(last))
    }
}
