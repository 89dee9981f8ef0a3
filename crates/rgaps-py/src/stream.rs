//! Streams, as Python programs name them: a number, or an object of torch, cupy or whoever keeps the protocol `__cuda_stream__`.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBool;
use rgaps::device::{Backend, Stream};

use crate::{errors, raw};

/// The legacy default stream and that of the thread, as CUDA's runtime and DLPack number them.
const LEGACY: i64 = 1;
const PER_THREAD: i64 = 2;

/// Reads a `stream` argument; `None` stays so. A bare 0 is refused, as by DLPack: it could mean either default stream.
pub(crate) fn handle(stream: Option<&Bound<'_, PyAny>>) -> PyResult<Option<u64>> {
    let Some(stream) = stream else { return Ok(None) };
    if !stream.is_instance_of::<PyBool>()
        && let Ok(number) = stream.extract::<i64>()
    {
        return match number {
            0 => Err(PyValueError::new_err(
                "stream 0 could mean two streams: 1 is the legacy default stream, 2 that of the thread",
            )),
            1.. => Ok(Some(normal(number as u64))),
            _ => Err(PyValueError::new_err(format!("{number} is no handle of a stream"))),
        };
    }
    let found = if let Some(protocol) = stream.getattr_opt("__cuda_stream__")? {
        let (_version, handle): (i64, u64) = protocol.call0()?.extract()?;
        Some(handle)
    } else if let Some(of_torch) = stream.getattr_opt("cuda_stream")? {
        Some(of_torch.extract()?)
    } else if let Some(of_cupy) = stream.getattr_opt("ptr")? {
        Some(of_cupy.extract()?)
    } else {
        None
    };
    found.map(|handle| Some(normal(handle))).ok_or_else(|| {
        let found = stream.get_type();
        PyTypeError::new_err(format!(
            "a stream is a handle (int), a torch or cupy stream, or an object with __cuda_stream__, not {found}"
        ))
    })
}

/// Both default streams become the legacy one (0 for the driver): it orders itself with that of every thread, and means the same on
/// whichever thread an array dies.
pub(crate) fn normal(handle: u64) -> u64 {
    if handle <= PER_THREAD as u64 { 0 } else { handle }
}

/// The handle as `__cuda_array_interface__` says it, where 0 is not allowed.
pub(crate) fn for_interface(handle: u64) -> u64 {
    if handle == 0 { LEGACY as u64 } else { handle }
}

/// Streams of other libraries that a node was given, with the objects that they were named by, so that these live as long as it.
#[derive(Default)]
pub(crate) struct Named(Mutex<HashMap<u64, Py<PyAny>>>);

impl Named {
    /// The stream of this handle; an error where the pools' device has none.
    pub(crate) fn borrow(
        &self,
        device: &dyn Backend,
        handle: u64,
        object: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Stream> {
        let Some(cuda) = device.as_cuda() else {
            return Err(errors::device(
                "this host's pools are in host memory, which has no streams: leave out the stream",
            ));
        };
        if let Some(object) = object {
            let before = {
                let mut named = self.0.lock().unwrap_or_else(PoisonError::into_inner);
                named.insert(handle, object.clone().unbind())
            };
            // What it replaces may run code of Python's when it goes, and so goes without the lock.
            drop(before);
        }
        Ok(raw::borrow_stream(cuda, handle))
    }
}
