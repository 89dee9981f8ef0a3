//! Metadata of images.

use pyo3::prelude::*;
use rgaps::types::Encoding;

use super::{metadata, with_header};
use crate::source::Source;
use crate::{errors, layout};

/// A picture, as in sensor_msgs/Image.
///
/// `encoding` is a name of sensor_msgs/image_encodings, such as rgb8, mono8, 16UC1 or nv12. `step` is the step from row to row in bytes; by
/// default rows have no gaps.
///
/// >>> image = rgaps.Image(640, 480, "rgb8", frame_id="camera_front")
/// >>> image.step, image.nbytes
/// (1920, 921600)
#[pyclass(frozen, eq, hash, module = "rgaps")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Image(pub(crate) rgaps::types::Image);

metadata!(Image {
    #[new]
    #[pyo3(signature = (width, height, encoding = "rgb8", *, step = None, is_bigendian = false, stamp = None, frame_id = None, user = None))]
    #[allow(clippy::too_many_arguments)] // Keywords, in Python.
    fn new(
        width: u32,
        height: u32,
        encoding: &str,
        step: Option<u32>,
        is_bigendian: bool,
        stamp: Option<u64>,
        frame_id: Option<&str>,
        user: Option<&[u8]>,
    ) -> PyResult<Self> {
        let encoding: Encoding = encoding.parse().map_err(|error| errors::metadata(&format!("{error}")))?;
        let made = rgaps::types::Image::new(width, height, encoding).and_then(|image| match step {
            Some(step) => image.with_step(step),
            None => Ok(image),
        });
        let image = made.map_err(|error| errors::of_meta(&error))?.with_bigendian(is_bigendian);
        with_header(image, stamp, frame_id, user).map(Self)
    }

    /// Metadata for an array of height x width or height x width x channels, without gaps between rows.
    ///
    /// Without `encoding`, uint8 of 1, 3 or 4 channels is mono8, rgb8 or rgba8; uint16 is mono16, rgb16 or rgba16; other types get OpenCV's
    /// names, such as 32FC1.
    ///
    /// >>> rgaps.Image.like(np.zeros((480, 640, 3), np.uint8)).encoding
    /// 'rgb8'
    /// >>> rgaps.Image.like(np.zeros((480, 640), np.uint16), "16UC1").step
    /// 1280
    #[staticmethod]
    #[pyo3(signature = (array, encoding = None, *, stamp = None, frame_id = None, user = None))]
    fn like(
        array: &Bound<'_, PyAny>,
        encoding: Option<&str>,
        stamp: Option<u64>,
        frame_id: Option<&str>,
        user: Option<&[u8]>,
    ) -> PyResult<Self> {
        let image = layout::image_like(&Source::shape_of(array)?, encoding)?;
        with_header(image, stamp, frame_id, user).map(Self)
    }

    /// Width in pixels.
    #[getter]
    fn width(&self) -> u32 {
        self.0.width
    }

    /// Height in pixels.
    #[getter]
    fn height(&self) -> u32 {
        self.0.height
    }

    /// Step from row to row of the first plane in bytes.
    #[getter]
    fn step(&self) -> u32 {
        self.0.step
    }

    /// Pixel format: a name of sensor_msgs/image_encodings.
    #[getter]
    fn encoding(&self) -> &'static str {
        self.0.encoding.name()
    }

    /// Whether channels wider than 8 bits are big-endian.
    #[getter]
    fn is_bigendian(&self) -> bool {
        self.0.is_bigendian
    }

    fn __repr__(&self) -> String {
        let rgaps::types::Image { width, height, step, encoding, .. } = self.0;
        let gap = if u64::from(step) == self.0.row_bytes() { String::new() } else { format!(", step={step}") };
        format!("rgaps.Image({width}, {height}, '{encoding}'{gap})")
    }
});
