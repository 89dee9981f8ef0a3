//! Finds and loads input: one file, or the files of a folder in the order of their names.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use super::error::LoadError;
use super::{FILE_BYTES_MAX, Media, npy, pcd, picture, ply};

/// Extensions of readable files.
pub const EXTENSIONS: &str = ".png, .jpg, .jpeg, .pcd, .ply or .npy";

/// What a file is read as, which decides the type of the topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileKind {
    /// PNG, JPEG.
    Image,
    /// PCD, PLY.
    Cloud,
    /// NPY.
    Tensor,
}

impl FileKind {
    /// All kinds, in the order of preference for a mixed folder.
    pub const ALL: [Self; 3] = [Self::Image, Self::Cloud, Self::Tensor];

    /// The kind of a file with this name.
    pub fn of(path: &Path) -> Option<Self> {
        match Format::of(path)? {
            Format::Picture => Some(Self::Image),
            Format::Pcd | Format::Ply => Some(Self::Cloud),
            Format::Npy => Some(Self::Tensor),
        }
    }
}

#[derive(Clone, Copy)]
enum Format {
    Picture,
    Pcd,
    Ply,
    Npy,
}

impl Format {
    fn of(path: &Path) -> Option<Self> {
        let extension = path.extension()?.to_str()?.to_ascii_lowercase();
        match extension.as_str() {
            "png" | "jpg" | "jpeg" => Some(Self::Picture),
            "pcd" => Some(Self::Pcd),
            "ply" => Some(Self::Ply),
            "npy" => Some(Self::Npy),
            _ => None,
        }
    }
}

/// The files that one topic can carry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    /// Their kind.
    pub kind: FileKind,
    /// The files, by name; at least one.
    pub files: Vec<PathBuf>,
    /// Number of readable files in the folder of other kinds.
    pub others: usize,
}

/// The input at `path`: the file itself, or the folder's files (without subfolders) of one kind, sorted by name.
///
/// A topic has one type. Unless a kind is requested, a folder gives its pictures if it has any, else its clouds, else its arrays.
///
/// ```
/// use rgaps_media::{FileKind, select};
///
/// # let folder = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/data"));
/// let pictures = select(folder, None)?; // a folder with pictures, a cloud and an array
/// assert_eq!((pictures.kind, pictures.files.len(), pictures.others), (FileKind::Image, 4, 2));
/// assert_eq!(select(folder, Some(FileKind::Cloud))?.files.len(), 1);
/// # Ok::<(), rgaps_media::LoadError>(())
/// ```
pub fn select(path: &Path, wish: Option<FileKind>) -> Result<Selection, LoadError> {
    let read_error = |source| LoadError::Read { path: path.to_owned(), source };
    if !fs::metadata(path).map_err(read_error)?.is_dir() {
        let kind = FileKind::of(path).ok_or_else(|| LoadError::Extension { path: path.to_owned() })?;
        return Ok(Selection { kind, files: vec![path.to_owned()], others: 0 });
    }
    let mut found = Vec::new();
    for entry in fs::read_dir(path).map_err(read_error)? {
        let file = entry.map_err(read_error)?.path();
        if let (Some(kind), true) = (FileKind::of(&file), file.is_file()) {
            found.push((kind, file));
        }
    }
    let has = |kind: &FileKind| found.iter().any(|(other, _)| other == kind);
    let kind = wish.or_else(|| FileKind::ALL.into_iter().find(has));
    let Some(kind) = kind.filter(has) else {
        return Err(LoadError::NothingThere { path: path.to_owned() });
    };
    let all = found.len();
    let mut files: Vec<PathBuf> = found.into_iter().filter(|(other, _)| *other == kind).map(|(_, file)| file).collect();
    files.sort();
    Ok(Selection { kind, others: all - files.len(), files })
}

/// Loads one file.
///
/// ```
/// use rgaps_media::{Media, load};
///
/// # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/data");
/// let Media::Image { meta, bytes } = load(format!("{folder}/rocket.jpg"))? else {
///     return Err("no picture".into());
/// };
/// assert_eq!((meta.width, meta.height, bytes.len()), (640, 427, 640 * 427 * 3));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn load(path: impl AsRef<Path>) -> Result<Media, LoadError> {
    let path = path.as_ref();
    let format = Format::of(path).ok_or_else(|| LoadError::Extension { path: path.to_owned() })?;
    let file = read(path)?;
    let format_error = |source| LoadError::Format { path: path.to_owned(), source };
    match format {
        Format::Picture => {
            let (meta, bytes) =
                picture::decode(&file).map_err(|source| LoadError::Picture { path: path.to_owned(), source })?;
            Ok(Media::Image { meta, bytes })
        }
        Format::Pcd => {
            let (meta, bytes) = pcd::parse(&file).map_err(format_error)?;
            Ok(Media::Cloud { meta, bytes })
        }
        Format::Ply => {
            let (meta, bytes) = ply::parse(&file).map_err(format_error)?;
            Ok(Media::Cloud { meta, bytes })
        }
        Format::Npy => {
            let (meta, bytes) = npy::parse(&file).map_err(format_error)?;
            Ok(Media::Tensor { meta, bytes })
        }
    }
}

/// Reads the whole file unless it is too large. The limit also applies to input without a length, such as a pipe.
fn read(path: &Path) -> Result<Vec<u8>, LoadError> {
    let read_error = |source| LoadError::Read { path: path.to_owned(), source };
    let file = File::open(path).map_err(read_error)?;
    let stated = file.metadata().map_err(read_error)?.len();
    let mut bytes = Vec::new();
    if stated <= FILE_BYTES_MAX {
        bytes.reserve_exact(stated as usize);
        file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(read_error)?;
    }
    let found = stated.max(bytes.len() as u64);
    if found > FILE_BYTES_MAX {
        return Err(LoadError::TooLarge { path: path.to_owned(), bytes: found, limit: FILE_BYTES_MAX });
    }
    Ok(bytes)
}
