//! Constructors and accessors of metadata.

use std::ffi::c_char;
use std::mem::MaybeUninit;

use rgaps::dynamic::DynamicMeta;
use rgaps::types::{Bytes, Encoding, Image, NDIM_MAX, PointCloud, PointField, Stamp, Tensor, Text};

use crate::raw;
use crate::status::{Failure, guard, guard_or, rgaps_status_t};
use crate::types::{datatype_of, dtype, encoding_of, fixed_text, rgaps_meta_t, rgaps_point_field_t};

/// Metadata of raw bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_meta_bytes(meta: Option<&mut MaybeUninit<rgaps_meta_t>>, bytes: u64) -> rgaps_status_t {
    made(meta, || Ok(Bytes::new(bytes).into()))
}

/// Metadata of an image whose rows follow each other without gaps. For rows with gaps, raise `as.image.step` afterwards.
///
/// ```c
/// rgaps_meta_t meta;
/// check(rgaps_meta_image(&meta, 1000, 10, "rgb8"));
/// meta.as.image.step = 3072;  // a camera that aligns rows to 256 B
/// assert(rgaps_meta_payload_bytes(&meta) == 30720);
/// ```
///
/// @param encoding  a name of sensor_msgs/image_encodings, such as "rgb8", "mono8", "16UC1" or "nv12"
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_meta_image(
    meta: Option<&mut MaybeUninit<rgaps_meta_t>>,
    width: u32,
    height: u32,
    encoding: *const c_char,
) -> rgaps_status_t {
    made(meta, || Ok(Image::new(width, height, encoding_of(raw::text(encoding, "encoding")?)?)?.into()))
}

/// Metadata of a cloud of `width` x `height` points of `point_step` bytes that follow each other without gaps; dense, little-endian. Add fields with
/// `rgaps_meta_add_field`.
///
/// ```c
/// rgaps_meta_t meta;
/// check(rgaps_meta_point_cloud(&meta, 1000, 1, 16));
/// check(rgaps_meta_add_field(&meta, "x", 0, RGAPS_FLOAT32));
/// check(rgaps_meta_add_field(&meta, "y", 4, RGAPS_FLOAT32));
/// check(rgaps_meta_add_field(&meta, "z", 8, RGAPS_FLOAT32));
/// check(rgaps_meta_add_field(&meta, "ring", 12, RGAPS_UINT16));
/// assert(rgaps_meta_payload_bytes(&meta) == 16000);
/// ```
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_meta_point_cloud(
    meta: Option<&mut MaybeUninit<rgaps_meta_t>>,
    width: u32,
    height: u32,
    point_step: u32,
) -> rgaps_status_t {
    made(meta, || Ok(PointCloud::new(width, height, point_step, &[])?.into()))
}

/// Adds a field of one element to the metadata of a cloud.
///
/// @param name      such as "x" or "intensity", at most 32 bytes
/// @param offset    its first byte in a point
/// @param datatype  an rgaps_datatype_t, such as RGAPS_FLOAT32. For several elements, set `count` of the field in `as.point_cloud.fields`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_meta_add_field(
    meta: Option<&mut rgaps_meta_t>,
    name: *const c_char,
    offset: u32,
    datatype: u32,
) -> rgaps_status_t {
    guard(|| {
        let meta = meta.ok_or_else(|| Failure::null("meta"))?;
        let cloud = match meta.check()? {
            DynamicMeta::PointCloud(cloud) => cloud,
            other => return Err(wrong_kind("point_cloud", &other)),
        };
        let name = raw::text(name, "name")?;
        if cloud.field(name).is_some() {
            return Err(Failure::argument(format_args!("the point has a field of the name '{name}' already")));
        }
        let mut fields = cloud.fields().to_vec();
        fields.push(PointField::new(name, offset, datatype_of(datatype)?)?);
        let mut with =
            PointCloud::new(cloud.width, cloud.height, cloud.point_step, &fields)?.with_row_step(cloud.row_step)?;
        with = with.with_dense(cloud.is_dense).with_bigendian(cloud.is_bigendian);
        with.header = cloud.header;
        *meta = rgaps_meta_t::of(&with.into());
        Ok(())
    })
}

/// Metadata of a tensor in C order: the last dimension is contiguous, without gaps and without offset.
///
/// ```c
/// rgaps_meta_t meta;
/// const int64_t shape[] = {1, 3, 224, 224};
/// check(rgaps_meta_tensor(&meta, RGAPS_FLOAT, 32, 4, shape));
/// assert(rgaps_meta_payload_bytes(&meta) == 602112);
/// ```
///
/// @param code   an rgaps_type_code_t, such as RGAPS_FLOAT, or another DLDataTypeCode of DLPack's
/// @param bits   of an element
/// @param ndim   dimensions, at most 8
/// @param shape  elements of each dimension
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_meta_tensor(
    meta: Option<&mut MaybeUninit<rgaps_meta_t>>,
    code: u32,
    bits: u32,
    ndim: u32,
    shape: *const i64,
) -> rgaps_status_t {
    made(meta, || {
        // Checked before `shape` is read.
        if ndim as usize > NDIM_MAX {
            return Err(Failure::argument(format_args!("{ndim} dimensions; at most {NDIM_MAX} fit")));
        }
        Ok(Tensor::new(dtype(code, bits)?, raw::slice(shape, ndim.into(), "shape")?)?.into())
    })
}

/// Sets stamp and frame of metadata.
///
/// ```c
/// rgaps_meta_t meta;
/// check(rgaps_meta_bytes(&meta, 64));
/// check(rgaps_meta_set_header(&meta, rgaps_now(), "lidar_front"));
/// ```
///
/// @param ns        ns since 1970, such as `rgaps_now()`
/// @param frame_id  at most 64 bytes; NULL leaves it empty
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_meta_set_header(
    meta: Option<&mut rgaps_meta_t>,
    ns: u64,
    frame_id: *const c_char,
) -> rgaps_status_t {
    guard(|| {
        let meta = meta.ok_or_else(|| Failure::null("meta"))?;
        let mut changed = meta.check()?;
        let header = changed.header_mut();
        header.stamp = Stamp::from_ns(ns);
        header.frame_id = Text::new("frame_id", raw::optional_text(frame_id, "frame_id")?.unwrap_or_default())?;
        *meta = rgaps_meta_t::of(&changed);
        Ok(())
    })
}

/// The present time in ns since 1970 on this host's clock.
#[unsafe(no_mangle)]
pub extern "C" fn rgaps_now() -> u64 {
    u64::try_from(Stamp::now().to_ns()).unwrap_or(0)
}

/// Bytes of the payload that metadata describes; 0 if the metadata is invalid (see `rgaps_error_text`).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_meta_payload_bytes(meta: Option<&rgaps_meta_t>) -> u64 {
    guard_or(|| Ok(meta.ok_or_else(|| Failure::null("meta"))?.check()?.payload_bytes())).unwrap_or(0)
}

/// The code of an encoding's name; 0 if the name is unknown.
///
/// ```c
/// assert(rgaps_encoding_code("rgb8") == 3 && rgaps_encoding_code("rgb9") == 0);
/// assert(strcmp(rgaps_encoding_name(3), "rgb8") == 0);
/// ```
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_encoding_code(name: *const c_char) -> u32 {
    guard_or(|| Ok(encoding_of(raw::text(name, "encoding")?)?.code())).unwrap_or(0)
}

/// The name of an encoding's code; NULL if the code is unknown.
#[unsafe(no_mangle)]
pub extern "C" fn rgaps_encoding_name(code: u32) -> *const c_char {
    Encoding::from_code(code).map_or(std::ptr::null(), |encoding| encoding.c_name().as_ptr())
}

/// The field of a cloud with this name.
///
/// ```c
/// rgaps_meta_t meta;
/// rgaps_point_field_t z;
/// check(rgaps_meta_point_cloud(&meta, 1000, 1, 12));
/// check(rgaps_meta_add_field(&meta, "z", 8, RGAPS_FLOAT32));
/// check(rgaps_meta_field(&meta, "z", &z));
/// assert(z.offset == 8 && z.datatype == RGAPS_FLOAT32 && z.count == 1);
/// ```
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_meta_field(
    meta: Option<&rgaps_meta_t>,
    name: *const c_char,
    field: Option<&mut MaybeUninit<rgaps_point_field_t>>,
) -> rgaps_status_t {
    guard(|| {
        let cloud = match meta.ok_or_else(|| Failure::null("meta"))?.check()? {
            DynamicMeta::PointCloud(cloud) => cloud,
            other => return Err(wrong_kind("point_cloud", &other)),
        };
        let out = field.ok_or_else(|| Failure::null("field"))?;
        let name = raw::text(name, "name")?;
        let found = cloud.field(name).ok_or_else(|| {
            let names: Vec<&str> = cloud.fields().iter().map(|field| field.name.as_str()).collect();
            Failure::argument(format_args!("the cloud has no field '{name}'; it has: {}", names.join(", ")))
        })?;
        let (offset, datatype, count) = (found.offset, found.datatype.code(), found.count);
        out.write(rgaps_point_field_t { name: fixed_text("name", found.name.as_str())?, offset, datatype, count });
        Ok(())
    })
}

fn made(
    meta: Option<&mut MaybeUninit<rgaps_meta_t>>,
    make: impl FnOnce() -> Result<DynamicMeta, Failure>,
) -> rgaps_status_t {
    guard(|| {
        let place = meta.ok_or_else(|| Failure::null("meta"))?;
        place.write(rgaps_meta_t::of(&make()?));
        Ok(())
    })
}

fn wrong_kind(wanted: &str, found: &DynamicMeta) -> Failure {
    let text = format!("the metadata is of kind {}, where {wanted} is needed", found.kind());
    Failure::new(rgaps_status_t::RGAPS_WRONG_KIND, text)
}
