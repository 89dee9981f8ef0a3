//! Streams as Python programs pass them: a number, or an object of torch, cupy or any library that implements `__cuda_stream__`.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBool;
use rgaps::device::{Backend, Stream};

use crate::{errors, raw};

/// The legacy default stream and the per-thread default stream, as CUDA's runtime and DLPack number them.
const LEGACY: i64 = 1;
const PER_THREAD: i64 = 2;

/// Reads a `stream` argument; None stays None. A bare 0 is refused, as in DLPack: it could mean either default stream.
pub(crate) fn handle(stream: Option<&Bound<'_, PyAny>>) -> PyResult<Option<u64>> {
    let Some(stream) = stream else { return Ok(None) };
    if !stream.is_instance_of::<PyBool>()
        && let Ok(number) = stream.extract::<i64>()
    {
        return match number {
            0 => Err(PyValueError::new_err(
                "stream 0 is ambiguous: use 1 for the legacy default stream, 2 for the per-thread default stream",
            )),
            1.. => Ok(Some(normal(number as u64))),
            _ => Err(PyValueError::new_err(format!("{number} is not a stream handle"))),
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
            "a stream must be a handle (int), a torch or cupy stream, or an object with __cuda_stream__, not {found}"
        ))
    })
}

/// Maps both default streams to the legacy one (0 for the driver). It is ordered with the default stream of every thread, and is the same
/// stream on whichever thread an array is freed.
pub(crate) fn normal(handle: u64) -> u64 {
    if handle <= PER_THREAD as u64 { 0 } else { handle }
}

/// The handle for `__cuda_array_interface__`, which does not allow 0.
pub(crate) fn for_interface(handle: u64) -> u64 {
    if handle == 0 { LEGACY as u64 } else { handle }
}

/// Streams of other libraries that a node was given. Keeps the objects that they were passed as, so that they live as long as the node.
#[derive(Default)]
pub(crate) struct Named(Mutex<HashMap<u64, Py<PyAny>>>);

impl Named {
    /// The stream of this handle; an error if the pools' device has no streams.
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
            // Dropping the replaced object may run Python code, so it happens without the lock.
            drop(before);
        }
        Ok(raw::borrow_stream(cuda, handle))
    }
}
