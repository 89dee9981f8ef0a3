//! Saves received messages: pictures as PNG, point clouds as PCD, tensors (and pictures that PNG cannot hold) as NPY.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use rgaps::types::{DType, DTypeCode, Encoding, Image, Meta, MetaError, PointCloud, Tensor};

use super::error::SaveError;
use super::{Media, npy, pcd, picture};

/// Why an encoder stopped; the file's name is added later.
#[derive(Debug)]
pub(super) enum Stop {
    /// The writer failed.
    Io(io::Error),
    /// The format cannot express it.
    Inexpressible {
        /// What it cannot express.
        what: String,
        /// What to do.
        remedy: &'static str,
    },
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Saves `media` as `prefix` with the extension of its format; returns the file's name.
///
/// ```
/// use rgaps::types::{Encoding, Image};
/// use rgaps_media::{Media, load, save};
///
/// let picture = Media::Image { meta: Image::new(2, 2, Encoding::Mono8)?, bytes: vec![1, 2, 3, 4] };
/// # let prefix = std::env::temp_dir().join(format!("rgaps-saved-{}", std::process::id()));
/// let path = save(&prefix, &picture)?;
/// assert_eq!(path.extension(), Some("png".as_ref()));
/// assert_eq!(load(&path)?.bytes(), [1, 2, 3, 4]);
/// # std::fs::remove_file(&path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn save(prefix: &Path, media: &Media) -> Result<PathBuf, SaveError> {
    match media {
        Media::Image { meta, bytes } => save_image(prefix, meta, bytes),
        Media::Cloud { meta, bytes } => save_cloud(prefix, meta, bytes),
        Media::Tensor { meta, bytes } => save_tensor(prefix, meta, bytes),
    }
}

/// Saves a picture: as PNG if PNG holds its encoding exactly, else as an array of (height, width, channels), or of (rows, step) for encodings whose
/// pixels share colours.
pub fn save_image(prefix: &Path, meta: &Image, payload: &[u8]) -> Result<PathBuf, SaveError> {
    if !picture::png_holds(meta.encoding) {
        let path = with_extension(prefix, "npy");
        check(&path, meta, payload)?;
        let array = array_of(meta).map_err(|source| SaveError::Metadata { path: path.clone(), source })?;
        return write_array(path, &array, payload);
    }
    let path = with_extension(prefix, "png");
    check(&path, meta, payload)?;
    let picture_error = |source| SaveError::Picture { path: path.clone(), source };
    write(&path, |file| picture::encode(meta, payload, file).map(drop).map_err(picture_error))?;
    Ok(path)
}

/// Saves a point cloud as binary PCD. What PCD cannot express (stamp, frame, padding of rows, big-endian order) is dropped.
pub fn save_cloud(prefix: &Path, meta: &PointCloud, payload: &[u8]) -> Result<PathBuf, SaveError> {
    let path = with_extension(prefix, "pcd");
    check(&path, meta, payload)?;
    write(&path, |file| pcd::encode(meta, payload, file).map_err(|stop| stopped(&path, "PCD", stop)))?;
    Ok(path)
}

/// Saves a tensor as NPY: in its own order if that is C or Fortran order, else in C order.
///
/// ```
/// use rgaps::types::{DType, Tensor};
/// use rgaps_media::{Media, load, save_tensor};
///
/// let tensor = Tensor::new(DType::UINT8, &[2, 3])?;
/// # let prefix = std::env::temp_dir().join(format!("rgaps-tensor-{}", std::process::id()));
/// let path = save_tensor(&prefix, &tensor, &[1, 2, 3, 4, 5, 6])?; // numpy.load reads it
/// assert_eq!(load(&path)?, Media::Tensor { meta: tensor, bytes: vec![1, 2, 3, 4, 5, 6] });
/// # std::fs::remove_file(&path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn save_tensor(prefix: &Path, meta: &Tensor, payload: &[u8]) -> Result<PathBuf, SaveError> {
    let path = with_extension(prefix, "npy");
    check(&path, meta, payload)?;
    write_array(path, meta, payload)
}

fn write_array(path: PathBuf, meta: &Tensor, payload: &[u8]) -> Result<PathBuf, SaveError> {
    write(&path, |file| npy::encode(meta, payload, file).map_err(|stop| stopped(&path, "NPY", stop)))?;
    Ok(path)
}

/// The pixels of an image as an array. Payload and image must have been checked.
fn array_of(meta: &Image) -> Result<Tensor, MetaError> {
    let step = i64::from(meta.step);
    let rows = meta.encoding.payload_rows(meta.height) as i64;
    let (width, channels) = (i64::from(meta.width), i64::from(meta.encoding.channels()));
    let dtype = match meta.encoding {
        Encoding::S8C1 | Encoding::S8C2 | Encoding::S8C3 | Encoding::S8C4 => DTypeCode::INT,
        Encoding::S16C1 | Encoding::S16C2 | Encoding::S16C3 | Encoding::S16C4 => DTypeCode::INT,
        Encoding::S32C1 | Encoding::S32C2 | Encoding::S32C3 | Encoding::S32C4 => DTypeCode::INT,
        Encoding::F32C1 | Encoding::F32C2 | Encoding::F32C3 | Encoding::F32C4 => DTypeCode::FLOAT,
        Encoding::F64C1 | Encoding::F64C2 | Encoding::F64C3 | Encoding::F64C4 => DTypeCode::FLOAT,
        Encoding::U8C2 | Encoding::U16C2 => DTypeCode::UINT,
        _ => return Tensor::strided(DType::UINT8, &[rows, step], &[step, 1], 0),
    };
    let channel_bytes = i64::from(meta.encoding.bits_per_channel()) / 8;
    let odd_step = step % channel_bytes != 0;
    if odd_step || (meta.is_bigendian && channel_bytes > 1) {
        // DLPack has neither type, so save the plain bytes.
        return Tensor::strided(DType::UINT8, &[rows, step], &[step, 1], 0);
    }
    let dtype = DType::scalar(dtype, meta.encoding.bits_per_channel() as u8);
    Tensor::strided(dtype, &[rows, width, channels], &[step / channel_bytes, channels, 1], 0)
}

fn check<T: Meta>(path: &Path, meta: &T, payload: &[u8]) -> Result<(), SaveError> {
    meta.check(payload.len() as u64).map_err(|source| SaveError::Metadata { path: path.to_owned(), source })
}

fn stopped(path: &Path, format: &'static str, stop: Stop) -> SaveError {
    let path = path.to_owned();
    match stop {
        Stop::Io(source) => SaveError::Write { path, source },
        Stop::Inexpressible { what, remedy } => SaveError::Inexpressible { path, format, what, remedy },
    }
}

/// `prefix.extension`; dots in `prefix` are kept.
fn with_extension(prefix: &Path, extension: &str) -> PathBuf {
    let mut path = prefix.as_os_str().to_owned();
    path.push(".");
    path.push(extension);
    path.into()
}

/// Writes a file; removes a partly written one if that fails.
fn write(path: &Path, contents: impl FnOnce(&mut BufWriter<File>) -> Result<(), SaveError>) -> Result<(), SaveError> {
    let write_error = |source| SaveError::Write { path: path.to_owned(), source };
    let mut file = BufWriter::new(File::create(path).map_err(write_error)?);
    let written = contents(&mut file).and_then(|()| file.flush().map_err(write_error));
    if written.is_err() {
        // Report the write error, not an error of the removal.
        let _ = fs::remove_file(path);
    }
    written
}
