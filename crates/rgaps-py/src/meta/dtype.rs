//! Element types by name, as in numpy, torch and the array interface.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use rgaps::types::{DType, DTypeCode};

/// Reads "float32", a dtype of numpy or torch, or a scalar class of numpy.
pub(crate) fn dtype_of(object: &Bound<'_, PyAny>) -> PyResult<DType> {
    let name: String = if let Ok(text) = object.extract() {
        text
    } else if let Some(Ok(name)) = object.getattr_opt("name")?.map(|name| name.extract()) {
        name
    } else if let Some(Ok(name)) = object.getattr_opt("__name__")?.map(|name| name.extract()) {
        name
    } else {
        object.str()?.to_string()
    };
    let short = name.rsplit('.').next().unwrap_or_default();
    parse(short).ok_or_else(|| {
        PyTypeError::new_err(format!(
            "'{name}' is no type of elements; use bool, int8 to int64, uint8 to uint64, float16 to float64, bfloat16, complex64 or complex128"
        ))
    })
}

fn parse(name: &str) -> Option<DType> {
    let digits = name.find(|letter: char| letter.is_ascii_digit()).unwrap_or(name.len());
    let (kind, bits) = name.split_at(digits);
    let code = match kind {
        "bool" | "bool_" => return Some(DType::BOOL),
        "float" if bits.is_empty() => return Some(DType::FLOAT64),
        "int" if bits.is_empty() => return Some(DType::INT64),
        "int" => DTypeCode::INT,
        "uint" => DTypeCode::UINT,
        "float" => DTypeCode::FLOAT,
        "bfloat" => DTypeCode::BFLOAT,
        "complex" => DTypeCode::COMPLEX,
        _ => return None,
    };
    let bits = bits.parse().ok()?;
    let known = match code {
        DTypeCode::INT | DTypeCode::UINT => [8, 16, 32, 64].contains(&bits),
        DTypeCode::FLOAT => [16, 32, 64].contains(&bits),
        DTypeCode::COMPLEX => [64, 128].contains(&bits),
        _ => bits == 16,
    };
    known.then_some(DType::scalar(code, bits))
}

/// The type in the array interface's notation, such as `<f4`; `None` if it has none.
pub(crate) fn array_type(dtype: DType, is_bigendian: bool) -> Option<String> {
    let letter = match dtype.code {
        DTypeCode::INT => 'i',
        DTypeCode::UINT => 'u',
        DTypeCode::FLOAT => 'f',
        DTypeCode::COMPLEX => 'c',
        DTypeCode::BOOL => 'b',
        _ => return None,
    };
    let order = match (dtype.bytes(), is_bigendian) {
        (1, _) => '|',
        (_, true) => '>',
        (_, false) => '<',
    };
    (dtype.lanes == 1).then(|| format!("{order}{letter}{}", dtype.bytes()))
}
