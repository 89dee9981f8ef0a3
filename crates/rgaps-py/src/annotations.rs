//! Annotations of types.

use pyo3::prelude::*;

/// `Publisher[rgaps.Image]` and the like, for annotations.
pub(crate) fn generic<'py>(
    class: &Bound<'py, pyo3::types::PyType>,
    item: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    class.py().import("types")?.getattr("GenericAlias")?.call1((class, item))
}
