//! Arrays received from any library, through the protocol that it implements.
//!
//! | the object has | its memory is on | protocol used |
//! |---|---|---|
//! | `__dlpack__` | a GPU | DLPack, in the order of a stream |
//! | a buffer | the CPU | the buffer: it supports structured types, byte orders and read-only arrays |
//! | `__dlpack__` | the CPU | DLPack |
//! | `__cuda_array_interface__` | a GPU | `__cuda_array_interface__` |

use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use rgaps::dlpack::DLDevice;
use rgaps::types::{DType, DTypeCode};

use crate::raw::{Buffer, ForeignTensor};

/// DLPack's codes of device types.
const CPU: i32 = 1;
const CUDA: i32 = 2;
const CUDA_HOST: i32 = 3;
const CUDA_MANAGED: i32 = 13;

/// The type of an array's items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    /// Numbers.
    Of(DType),
    /// Structures, or another type that only the array's library understands.
    Opaque,
}

/// The shape of an array.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) element: Element,
    pub(crate) item_bytes: u64,
    /// Number of items in each dimension.
    pub(crate) shape: Vec<i64>,
    /// Step in bytes in each dimension.
    pub(crate) strides: Vec<i64>,
    /// Whether items are big-endian.
    pub(crate) is_bigendian: bool,
}

/// Keeps an array's memory alive. Dropping it may call Python, so it is dropped without locks.
pub(crate) enum Keep {
    Buffer(#[allow(dead_code)] Buffer),
    Tensor(#[allow(dead_code)] ForeignTensor),
    Object(#[allow(dead_code)] Py<PyAny>),
}

/// An array of another library, with what keeps its memory alive.
pub(crate) struct Source {
    pub(crate) shape: Shape,
    pub(crate) address: u64,
    /// Whether it is in device memory.
    pub(crate) is_cuda: bool,
    /// The device's number in this process, if known.
    pub(crate) ordinal: Option<i32>,
    /// The stream that produces the array, if it names one.
    pub(crate) stream: Option<u64>,
    pub(crate) keep: Keep,
}

impl Source {
    /// Reads an array. If it is on a GPU, the given stream is made to wait for the array's producer.
    pub(crate) fn of(object: &Bound<'_, PyAny>, stream: u64) -> PyResult<Self> {
        let py = object.py();
        if let Some(device) = object.getattr_opt(intern!(py, "__dlpack_device__"))? {
            let device: Bound<'_, PyTuple> = device.call0()?.cast_into()?;
            let kind: i32 = device.get_item(0)?.extract()?;
            return match kind {
                CUDA | CUDA_MANAGED => Self::by_dlpack(object, Some(crate::stream::for_interface(stream))),
                CPU | CUDA_HOST => {
                    Buffer::of(object).and_then(Self::by_buffer).or_else(|_| Self::by_dlpack(object, None))
                }
                _ => Err(PyBufferError::new_err(format!(
                    "an array on a device of DLPack's type {kind} cannot be published: copy it to the CPU first"
                ))),
            };
        }
        match object.getattr_opt(intern!(py, "__cuda_array_interface__"))? {
            Some(interface) => Self::by_cuda_interface(object, &interface),
            None => Buffer::of(object).and_then(Self::by_buffer).map_err(|error| {
                let text = format!(
                    "{} is no array: it has neither __dlpack__ nor __cuda_array_interface__ nor a buffer",
                    object.get_type()
                );
                let refused = PyTypeError::new_err(text);
                refused.set_cause(py, Some(error));
                refused
            }),
        }
    }

    /// The shape of an array; releases the array at once.
    pub(crate) fn shape_of(object: &Bound<'_, PyAny>) -> PyResult<Shape> {
        Ok(Self::of(object, 0)?.shape)
    }

    fn by_buffer(buffer: Buffer) -> PyResult<Self> {
        let item_bytes = buffer.item_bytes();
        let (element, is_bigendian) = parse_format(&buffer.format(), item_bytes);
        let (shape, strides) = (buffer.shape(), buffer.strides());
        let shape = Shape { element, item_bytes, shape, strides, is_bigendian };
        let address = buffer.address();
        Ok(Self { shape, address, is_cuda: false, ordinal: None, stream: None, keep: Keep::Buffer(buffer) })
    }

    fn by_dlpack(object: &Bound<'_, PyAny>, stream: Option<u64>) -> PyResult<Self> {
        let py = object.py();
        let keywords = PyDict::new(py);
        if let Some(stream) = stream {
            keywords.set_item("stream", stream)?;
        }
        let method = object.getattr(intern!(py, "__dlpack__"))?;
        let versioned = keywords.copy()?;
        versioned.set_item("max_version", (1, 1))?;
        let capsule = match method.call((), Some(&versioned)) {
            // A library older than DLPack 1.0 does not know the keyword.
            Err(error) if error.is_instance_of::<PyTypeError>(py) => method.call((), Some(&keywords))?,
            other => other?,
        };
        let tensor = ForeignTensor::consume(&capsule)?;
        let (shape, strides) = tensor.shape_and_strides();
        let described = tensor.tensor();
        let dtype = DType { code: described.dtype.code, bits: described.dtype.bits, lanes: described.dtype.lanes };
        let item_bytes = dtype.bytes();
        if item_bytes == 0 {
            return Err(PyBufferError::new_err(format!("elements of {dtype} are not whole bytes")));
        }
        let strides = strides.into_iter().map(|stride| stride.saturating_mul(item_bytes as i64)).collect();
        let address = described.data as u64 + described.byte_offset;
        let is_cuda = !matches!(described.device, DLDevice { device_type: CPU | CUDA_HOST, .. });
        // Managed memory belongs to no particular device.
        let ordinal = (described.device.device_type == CUDA).then_some(described.device.device_id);
        let shape = Shape { element: Element::Of(dtype), item_bytes, shape, strides, is_bigendian: false };
        Ok(Self { shape, address, is_cuda, ordinal, stream: None, keep: Keep::Tensor(tensor) })
    }

    /// Source      "CUDA Array Interface (Version 3)", Numba's documentation.
    fn by_cuda_interface(object: &Bound<'_, PyAny>, interface: &Bound<'_, PyAny>) -> PyResult<Self> {
        let kind: String = interface.get_item("typestr")?.extract()?;
        let (address, _): (u64, bool) = interface.get_item("data")?.extract()?;
        let shape: Vec<i64> = interface.get_item("shape")?.extract()?;
        let optional = |name: &str| interface.call_method1("get", (name,));
        let (element, is_bigendian, item_bytes) = parse_array_type(&kind)
            .ok_or_else(|| PyBufferError::new_err(format!("elements of type '{kind}' cannot be published")))?;
        let strides = match optional("strides")?.extract::<Option<Vec<i64>>>()? {
            Some(strides) => strides,
            None => {
                let mut strides = vec![item_bytes as i64; shape.len()];
                for axis in (1..shape.len()).rev() {
                    strides[axis - 1] = strides[axis].saturating_mul(shape[axis].max(1));
                }
                strides
            }
        };
        let stream: Option<u64> = optional("stream")?.extract()?;
        let shape = Shape { element, item_bytes, shape, strides, is_bigendian };
        let keep = Keep::Object(object.clone().unbind());
        Ok(Self { shape, address, is_cuda: true, ordinal: None, stream: stream.map(crate::stream::normal), keep })
    }
}

impl Shape {
    /// Bytes of all items.
    pub(crate) fn bytes(&self) -> u64 {
        self.shape.iter().fold(self.item_bytes, |bytes, items| bytes.saturating_mul(items.unsigned_abs()))
    }

    /// For errors: `(480, 640, 3) of uint8`.
    pub(crate) fn text(&self) -> String {
        let shape: Vec<String> = self.shape.iter().map(i64::to_string).collect();
        let element = match self.element {
            Element::Of(dtype) => dtype.to_string(),
            Element::Opaque => format!("items of {} B", self.item_bytes),
        };
        format!("({}) of {element}", shape.join(", "))
    }
}

/// Parses a format of the struct module, as buffers have it.
fn parse_format(format: &str, item_bytes: u64) -> (Element, bool) {
    let is_bigendian = format.starts_with('>') || format.starts_with('!');
    let code = match format.trim_start_matches(['@', '=', '<', '>', '!', '^']) {
        "b" | "h" | "i" | "l" | "q" | "n" => DTypeCode::INT,
        "B" | "c" | "H" | "I" | "L" | "Q" | "N" => DTypeCode::UINT,
        "e" | "f" | "d" => DTypeCode::FLOAT,
        "Zf" | "Zd" | "F" | "D" => DTypeCode::COMPLEX,
        "?" => DTypeCode::BOOL,
        _ => return (Element::Opaque, is_bigendian),
    };
    match u8::try_from(item_bytes * 8) {
        Ok(bits) if bits > 0 => (Element::Of(DType::scalar(code, bits)), is_bigendian && item_bytes > 1),
        _ => (Element::Opaque, is_bigendian),
    }
}

/// Parses a type of the array interface, such as `<f4`; also returns the bytes of an item.
fn parse_array_type(text: &str) -> Option<(Element, bool, u64)> {
    let mut letters = text.chars();
    let (order, letter) = (letters.next()?, letters.next()?);
    let bytes: u64 = letters.as_str().parse().ok()?;
    let code = match letter {
        'i' => DTypeCode::INT,
        'u' => DTypeCode::UINT,
        'f' => DTypeCode::FLOAT,
        'c' => DTypeCode::COMPLEX,
        'b' => DTypeCode::BOOL,
        _ => return None,
    };
    let bits = u8::try_from(bytes.checked_mul(8)?).ok().filter(|bits| *bits > 0)?;
    Some((Element::Of(DType::scalar(code, bits)), order == '>' && bytes > 1, bytes))
}
