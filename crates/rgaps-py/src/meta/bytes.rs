//! Metadata of raw bytes.

use pyo3::prelude::*;

use super::{metadata, with_header};

/// A payload of raw bytes.
///
/// `rgaps.Bytes(1000)` describes 1000 bytes.
///
/// >>> rgaps.Bytes(1000, frame_id="lidar").nbytes
/// 1000
#[pyclass(frozen, eq, hash, module = "rgaps")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Bytes(pub(crate) rgaps::types::Bytes);

metadata!(Bytes {
    #[new]
    #[pyo3(signature = (nbytes, *, stamp = None, frame_id = None, user = None))]
    fn new(nbytes: u64, stamp: Option<u64>, frame_id: Option<&str>, user: Option<&[u8]>) -> PyResult<Self> {
        with_header(rgaps::types::Bytes::new(nbytes), stamp, frame_id, user).map(Self)
    }

    fn __repr__(&self) -> String {
        format!("rgaps.Bytes({})", self.nbytes())
    }
});
