//! Matches arrays with metadata: derives metadata from an array, and finds where each item of an array belongs in the payload.

use pyo3::prelude::*;
use rgaps::dynamic::{DynamicMeta, Kind};
use rgaps::types::{self, DType, Encoding, Meta};

use crate::errors;
use crate::meta::cloud;
use crate::raw::Gather;
use crate::source::{Element, Shape};

/// Metadata of the topic's kind for an array; `encoding` applies to images.
pub(crate) fn like(
    kind: Kind,
    array: &Bound<'_, PyAny>,
    shape: &Shape,
    encoding: Option<&str>,
) -> PyResult<DynamicMeta> {
    if encoding.is_some() && kind != Kind::Image {
        return Err(errors::metadata(&format!("a message of type {kind} has no encoding")));
    }
    Ok(match kind {
        Kind::Bytes => types::Bytes::new(shape.bytes()).into(),
        Kind::Image => image_like(shape, encoding)?.into(),
        Kind::PointCloud => cloud_like(array, shape)?.into(),
        Kind::Tensor => tensor_like(shape)?.into(),
    })
}

pub(crate) fn tensor_like(shape: &Shape) -> PyResult<types::Tensor> {
    let Element::Of(dtype) = shape.element else {
        return Err(errors::metadata(&format!(
            "an array of {} is no tensor: its elements are not numbers",
            shape.text()
        )));
    };
    native(shape)?;
    types::Tensor::new(dtype, &shape.shape).map_err(|error| errors::of_meta(&error))
}

pub(crate) fn image_like(shape: &Shape, encoding: Option<&str>) -> PyResult<types::Image> {
    let (Element::Of(dtype), [height, width, rest @ ..]) = (shape.element, &shape.shape[..]) else {
        return Err(no_picture(shape));
    };
    let channels = match rest {
        [] => 1,
        [channels] => *channels,
        _ => return Err(no_picture(shape)),
    };
    let encoding = match encoding {
        Some(name) => name.parse().map_err(|error| errors::metadata(&format!("{error}")))?,
        None => usual_encoding(dtype, channels).ok_or_else(|| no_picture(shape))?,
    };
    let rows = match encoding {
        // The rows of both planes are one dimension, as in `Payload`.
        Encoding::Nv12 | Encoding::Nv21 => height / 3 * 2,
        Encoding::Nv24 => height / 3,
        _ => *height,
    };
    let size = |items: i64| u32::try_from(items).map_err(|_| no_picture(shape));
    let image = types::Image::new(size(*width)?, size(rows)?, encoding).map_err(|error| errors::of_meta(&error))?;
    let image = image.with_bigendian(shape.is_bigendian);
    gather(&image.into(), shape)?;
    Ok(image)
}

/// The encoding that ROS programs expect for an array with this many channels.
fn usual_encoding(dtype: DType, channels: i64) -> Option<Encoding> {
    let name = match (dtype, channels) {
        (DType::UINT8, 1) => "mono8",
        (DType::UINT8, 3) => "rgb8",
        (DType::UINT8, 4) => "rgba8",
        (DType::UINT16, 1) => "mono16",
        (DType::UINT16, 3) => "rgb16",
        (DType::UINT16, 4) => "rgba16",
        _ => "",
    };
    // Other types have OpenCV's names, 8UC2 to 64FC4.
    let opencv = |encoding: &&Encoding| {
        encoding.code() < Encoding::BayerRggb8.code()
            && encoding.channel_type() == dtype
            && i64::from(encoding.channels()) == channels
    };
    name.parse().ok().or_else(|| Encoding::ALL.iter().rev().find(opencv).copied())
}

fn no_picture(shape: &Shape) -> PyErr {
    errors::metadata(&format!(
        "an array of {} is no picture: it needs height x width or height x width x channels (1 to 4) of uint8, int8, uint16, int16, \
         int32, float32 or float64; convert it, or give its encoding",
        shape.text()
    ))
}

pub(crate) fn cloud_like(array: &Bound<'_, PyAny>, shape: &Shape) -> PyResult<types::PointCloud> {
    let none = || {
        errors::metadata(&format!(
            "an array of {} is no cloud: it needs a structured dtype, or float32 of points x 3 or x 4; convert it, or give metadata",
            shape.text()
        ))
    };
    let size = |items: i64| u32::try_from(items).map_err(|_| none());
    if shape.element == Element::Opaque {
        let dtype = array.getattr_opt("dtype")?.ok_or_else(none)?;
        return match shape.shape[..] {
            [points] => cloud::of_structured(&dtype, size(points)?, 1),
            [height, width] => cloud::of_structured(&dtype, size(width)?, size(height)?),
            _ => Err(none()),
        };
    }
    let names = ["x", "y", "z", "intensity"];
    match (shape.element, &shape.shape[..]) {
        (Element::Of(DType::FLOAT32), &[points, fields @ (3 | 4)]) => {
            native(shape)?;
            let fields: Vec<_> =
                names[..fields as usize].iter().map(|name| (*name, types::Datatype::Float32)).collect();
            types::PointCloud::packed(size(points)?, &fields).map_err(|error| errors::of_meta(&error))
        }
        _ => Err(none()),
    }
}

/// Where the items of an array belong in the payload that the metadata describes.
pub(crate) fn gather(meta: &DynamicMeta, shape: &Shape) -> PyResult<Gather> {
    let is_raw = shape.item_bytes == 1 && shape.shape.len() == 1 && shape.bytes() == meta.payload_bytes();
    if is_raw || meta.kind() == Kind::Bytes {
        // Any array may be pushed as raw bytes, in C order.
        let given = shape.bytes();
        if given != meta.payload_bytes() {
            return Err(errors::metadata(&format!(
                "the metadata describes {} B, the array has {given} B",
                meta.payload_bytes()
            )));
        }
        return Ok(packed(shape));
    }
    if let DynamicMeta::PointCloud(cloud) = meta {
        return points(cloud, shape);
    }
    let wanted = without_byte_order(meta).tensor().map_err(|error| errors::of_view(&error))?;
    let is_bigendian = matches!(meta, DynamicMeta::Image(image) if image.is_bigendian);
    if shape.element != Element::Of(wanted.dtype()) {
        return Err(another_shape(&wanted, shape));
    }
    if shape.item_bytes > 1 && shape.is_bigendian != is_bigendian {
        native(shape)?;
        return Err(errors::metadata("the metadata says big-endian, but the array is little-endian"));
    }
    let (mut array, mut strides) = (shape.shape.clone(), shape.strides.clone());
    // Some libraries give a single channel a dimension of its own.
    if array.len() == wanted.shape().len() + 1 && array.last() == Some(&1) {
        array.pop();
        strides.pop();
    }
    if array != wanted.shape() {
        return Err(another_shape(&wanted, shape));
    }
    let to_strides = wanted.strides().iter().map(|stride| stride * shape.item_bytes as i64).collect();
    let gather = Gather {
        shape: array,
        from_strides: strides,
        to_strides,
        to_offset: wanted.byte_offset(),
        item_bytes: shape.item_bytes,
    };
    fits(gather, meta.payload_bytes())
}

fn points(cloud: &types::PointCloud, shape: &Shape) -> PyResult<Gather> {
    let (width, height) = (i64::from(cloud.width), i64::from(cloud.height));
    let (point, row) = (i64::from(cloud.point_step), i64::from(cloud.row_step));
    let refused = || {
        errors::metadata(&format!(
            "the metadata describes {height} x {width} points of {point} B, the array has {}",
            shape.text()
        ))
    };
    // Structures are points. Numbers are points if the last dimension makes up one point.
    let mut outer = shape.shape.clone();
    let mut point_bytes = shape.item_bytes;
    let inner = match shape.element {
        Element::Opaque => None,
        Element::Of(dtype) => {
            let last = outer.pop().ok_or_else(refused)?;
            point_bytes = point_bytes.saturating_mul(last.unsigned_abs());
            // DLPack presents a cloud as bytes.
            let fits = dtype == DType::UINT8 || cloud.fields().iter().all(|field| field.datatype.dtype() == dtype);
            if !fits || (shape.item_bytes > 1 && shape.is_bigendian != cloud.is_bigendian) {
                return Err(refused());
            }
            Some(last)
        }
    };
    if point_bytes != u64::from(cloud.point_step) {
        return Err(refused());
    }
    let has_gaps = width * point < row && height > 1;
    let mut to_strides = match outer[..] {
        [points] if points == width * height && !has_gaps => vec![point],
        [rows, columns] if (rows, columns) == (height, width) => vec![row, point],
        _ => return Err(refused()),
    };
    if inner.is_some() {
        to_strides.push(shape.item_bytes as i64);
    }
    let gather = Gather {
        shape: shape.shape.clone(),
        from_strides: shape.strides.clone(),
        to_strides,
        to_offset: 0,
        item_bytes: shape.item_bytes,
    };
    fits(gather, cloud.payload_bytes())
}

/// All items in C order, from the first byte on.
fn packed(shape: &Shape) -> Gather {
    let mut to_strides = vec![shape.item_bytes as i64; shape.shape.len()];
    for axis in (1..shape.shape.len()).rev() {
        to_strides[axis - 1] = to_strides[axis].saturating_mul(shape.shape[axis].max(1));
    }
    Gather {
        shape: shape.shape.clone(),
        from_strides: shape.strides.clone(),
        to_strides,
        to_offset: 0,
        item_bytes: shape.item_bytes,
    }
}

fn fits(gather: Gather, block: u64) -> PyResult<Gather> {
    match gather.check(block) {
        Ok(()) => Ok(gather),
        Err(_) => Err(errors::metadata(
            "the metadata has negative strides: fill a loan, whose array has them too, instead of pushing",
        )),
    }
}

/// The same layout, if only its byte order keeps it from being a tensor of numbers.
pub(crate) fn without_byte_order(meta: &DynamicMeta) -> DynamicMeta {
    match *meta {
        DynamicMeta::Image(image) => image.with_bigendian(false).into(),
        DynamicMeta::PointCloud(cloud) => cloud.with_bigendian(false).into(),
        other => other,
    }
}

fn native(shape: &Shape) -> PyResult<()> {
    match shape.is_bigendian {
        false => Ok(()),
        true => {
            Err(errors::metadata("the array is big-endian; convert it: array.astype(array.dtype.newbyteorder('='))"))
        }
    }
}

fn another_shape(wanted: &types::Tensor, shape: &Shape) -> PyErr {
    let wanted_shape: Vec<String> = wanted.shape().iter().map(i64::to_string).collect();
    errors::metadata(&format!(
        "the metadata describes ({}) of {}, the array has {}",
        wanted_shape.join(", "),
        wanted.dtype(),
        shape.text()
    ))
}
