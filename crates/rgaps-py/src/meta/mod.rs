//! The metadata classes: immutable values that describe a message's payload.

pub(crate) mod bytes;
pub(crate) mod cloud;
mod dtype;
pub(crate) mod image;
pub(crate) mod tensor;

pub(crate) use dtype::{array_type, dtype_of};

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use rgaps::dynamic::{DynamicMeta, Kind};
use rgaps::types::{META_BYTES_MAX, Meta, Stamp, USER_BYTES};

use crate::errors;

/// The header's members, which all metadata classes share.
macro_rules! metadata {
    ($name:ident { $($methods:tt)* }) => {
        #[pymethods]
        impl $name {
            $($methods)*

            /// Stamp of the header, ns since 1970.
            #[getter]
            fn stamp(&self) -> i64 {
                rgaps::types::Meta::header(&self.0).stamp.to_ns()
            }

            /// Coordinate frame of the header, or the name of a tensor: at most 64 bytes of UTF-8.
            #[getter]
            fn frame_id(&self) -> String {
                rgaps::types::Meta::header(&self.0).frame_id.as_str().to_owned()
            }

            /// The application's own 32 bytes.
            #[getter]
            fn user<'py>(&self, py: Python<'py>) -> Bound<'py, pyo3::types::PyBytes> {
                pyo3::types::PyBytes::new(py, &rgaps::types::Meta::header(&self.0).user)
            }

            /// Bytes of payload that the metadata describes.
            #[getter]
            fn nbytes(&self) -> u64 {
                rgaps::types::Meta::payload_bytes(&self.0)
            }

            /// The metadata as bytes: what follows the handle in an rgaps_msgs message, without padding.
            fn encode<'py>(&self, py: Python<'py>) -> Bound<'py, pyo3::types::PyBytes> {
                $crate::meta::encode(py, self.0.into())
            }

            /// Reads metadata from bytes that `encode` (in any language) wrote.
            ///
            /// >>> carried = rgaps.Bytes(1000, frame_id="lidar").encode()
            /// >>> rgaps.Bytes.decode(carried).frame_id
            /// 'lidar'
            #[staticmethod]
            fn decode(bytes: &[u8]) -> PyResult<Self> {
                rgaps::types::Meta::decode(bytes).map(Self).map_err(|error| $crate::errors::of_meta(&error))
            }

            /// A copy with another stamp, frame or user bytes.
            ///
            /// >>> rgaps.Bytes(1000, frame_id="lidar").replace(stamp=1_500_000_000).stamp
            /// 1500000000
            #[pyo3(signature = (*, stamp = None, frame_id = None, user = None))]
            fn replace(&self, stamp: Option<u64>, frame_id: Option<&str>, user: Option<&[u8]>) -> PyResult<Self> {
                $crate::meta::with_header(self.0, stamp, frame_id, user).map(Self)
            }
        }
    };
}
pub(crate) use metadata;

pub(crate) fn encode(py: Python<'_>, meta: DynamicMeta) -> Bound<'_, PyBytes> {
    let mut bytes = [0; META_BYTES_MAX];
    let length = meta.encode(&mut bytes);
    PyBytes::new(py, &bytes[..length])
}

/// Replaces header fields by the given ones; those left out stay unchanged.
pub(crate) fn with_header<T: Meta>(
    mut meta: T,
    stamp: Option<u64>,
    frame_id: Option<&str>,
    user: Option<&[u8]>,
) -> PyResult<T> {
    if let Some(ns) = stamp {
        meta = meta.stamped(Stamp::from_ns(ns));
    }
    if let Some(frame_id) = frame_id {
        meta = meta.in_frame(frame_id).map_err(|error| errors::of_meta(&error))?;
    }
    if let Some(user) = user {
        let mut bytes = [0; USER_BYTES];
        let Some(place) = bytes.get_mut(..user.len()) else {
            return Err(PyValueError::new_err(format!("user has {} B; at most {USER_BYTES} B fit", user.len())));
        };
        place.copy_from_slice(user);
        meta = meta.with_user(bytes);
    }
    Ok(meta)
}

/// The Python object of metadata.
pub(crate) fn to_python(py: Python<'_>, meta: DynamicMeta) -> PyResult<Py<PyAny>> {
    Ok(match meta {
        DynamicMeta::Bytes(meta) => Py::new(py, bytes::Bytes(meta))?.into_any(),
        DynamicMeta::Image(meta) => Py::new(py, image::Image(meta))?.into_any(),
        DynamicMeta::PointCloud(meta) => Py::new(py, cloud::PointCloud(meta))?.into_any(),
        DynamicMeta::Tensor(meta) => Py::new(py, tensor::Tensor(meta))?.into_any(),
    })
}

/// Reads metadata from a Python object.
pub(crate) fn of_python(object: &Bound<'_, PyAny>) -> PyResult<DynamicMeta> {
    if let Ok(meta) = object.cast::<bytes::Bytes>() {
        Ok(meta.get().0.into())
    } else if let Ok(meta) = object.cast::<image::Image>() {
        Ok(meta.get().0.into())
    } else if let Ok(meta) = object.cast::<cloud::PointCloud>() {
        Ok(meta.get().0.into())
    } else if let Ok(meta) = object.cast::<tensor::Tensor>() {
        Ok(meta.get().0.into())
    } else {
        let found = object.get_type();
        Err(PyTypeError::new_err(format!("metadata must be an rgaps.Image, PointCloud, Tensor or Bytes, not {found}")))
    }
}

/// The kind of a metadata class.
pub(crate) fn kind_of(class: &Bound<'_, PyAny>) -> PyResult<Kind> {
    let py = class.py();
    if class.is(py.get_type::<bytes::Bytes>()) {
        Ok(Kind::Bytes)
    } else if class.is(py.get_type::<image::Image>()) {
        Ok(Kind::Image)
    } else if class.is(py.get_type::<cloud::PointCloud>()) {
        Ok(Kind::PointCloud)
    } else if class.is(py.get_type::<tensor::Tensor>()) {
        Ok(Kind::Tensor)
    } else {
        Err(PyTypeError::new_err(format!(
            "the type of a topic must be rgaps.Image, PointCloud, Tensor or Bytes, not {}",
            class.repr()?
        )))
    }
}

/// The metadata class of a kind.
pub(crate) fn class_of(py: Python<'_>, kind: Kind) -> Bound<'_, PyAny> {
    match kind {
        Kind::Bytes => py.get_type::<bytes::Bytes>(),
        Kind::Image => py.get_type::<image::Image>(),
        Kind::PointCloud => py.get_type::<cloud::PointCloud>(),
        Kind::Tensor => py.get_type::<tensor::Tensor>(),
    }
    .into_any()
}
