//! Errors of files: the file's name, the place in it, and what to do.

use std::fmt;
use std::io;
use std::path::PathBuf;

use rgaps::types::MetaError;

/// A file could not be loaded. Other files are not affected.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The system refused to read it.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Its name has an unknown extension.
    #[error("{}: not a kind of file that rgaps reads; give one that ends in {}", path.display(), super::input::EXTENSIONS)]
    Extension {
        /// The file.
        path: PathBuf,
    },
    /// The folder has no readable file.
    #[error("{}: no file in it ends in {}", path.display(), super::input::EXTENSIONS)]
    NothingThere {
        /// The folder.
        path: PathBuf,
    },
    /// It is too large to be read.
    #[error("{}: {bytes} B; at most {limit} B are read, split the file", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its length.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// It is no picture, or a damaged one.
    #[error("{}: unreadable picture ({source}); save it again as PNG or JPEG, or take it out of the input", path.display())]
    Picture {
        /// The file.
        path: PathBuf,
        /// The decoder's error.
        source: image::ImageError,
    },
    /// Its content violates its format.
    #[error("{}, {source}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// Where, and what is wrong.
        source: FormatError,
    },
}

/// A payload could not be saved; a partly written file was removed.
#[derive(Debug, thiserror::Error)]
pub enum SaveError {
    /// The system refused to write it.
    #[error("{}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The picture encoder failed.
    #[error("{}: the picture was not written: {source}", path.display())]
    Picture {
        /// The file.
        path: PathBuf,
        /// The encoder's error.
        source: image::ImageError,
    },
    /// Metadata and payload do not match.
    #[error("{}: {source}", path.display())]
    Metadata {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: MetaError,
    },
    /// The format cannot express it.
    #[error("{}: {format} cannot hold {what}; {remedy}", path.display())]
    Inexpressible {
        /// The file.
        path: PathBuf,
        /// The format.
        format: &'static str,
        /// What it cannot express.
        what: String,
        /// What to do.
        remedy: &'static str,
    },
}

/// A file's content violates its format.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {problem}")]
pub struct FormatError {
    /// Where.
    pub place: Location,
    /// What.
    pub problem: Problem,
}

/// A place in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location {
    /// A line of text, from 1.
    Line(usize),
    /// A byte, from 0.
    Byte(usize),
}

impl Location {
    /// `problem` is here.
    pub fn has(self, problem: Problem) -> FormatError {
        FormatError { place: self, problem }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line(line) => write!(f, "line {line}"),
            Self::Byte(byte) => write!(f, "byte {byte}"),
        }
    }
}

/// How a file violates its format.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The content is not of the format that the file's name says.
    #[error("this is not {format}: it should begin with {wanted}; rename the file after its real format")]
    NotThis {
        /// The format that the file's name promises.
        format: &'static str,
        /// How the format begins.
        wanted: &'static str,
    },
    /// A line or header without an end, or bytes that are not text.
    #[error("the header is not text in lines of at most {limit} B; the file is damaged or not {format}")]
    NotText {
        /// The format.
        format: &'static str,
        /// The longest line.
        limit: usize,
    },
    /// A required part is missing.
    #[error("the header has no {what}; add it or write the file again")]
    Missing {
        /// The missing part.
        what: &'static str,
    },
    /// A word is not allowed in its place.
    #[error("'{found}' is not {wanted}")]
    Word {
        /// The word.
        found: String,
        /// What is allowed.
        wanted: &'static str,
    },
    /// A number contradicts others.
    #[error("{found} {what}, but {wanted} follow from the rest of the header; correct the header")]
    Mismatch {
        /// What is counted.
        what: &'static str,
        /// How many are stated.
        found: u64,
        /// How many there should be.
        wanted: u64,
    },
    /// A line of points has the wrong number of values.
    #[error("{found} values where {wanted} are declared; correct the line or the header")]
    Values {
        /// Values of the line.
        found: usize,
        /// Values declared.
        wanted: usize,
    },
    /// Too many of something.
    #[error("{found} {what}; at most {limit} are read, leave out what is not needed")]
    TooMany {
        /// What.
        what: &'static str,
        /// How many.
        found: u64,
        /// How many are read.
        limit: u64,
    },
    /// The file ends early.
    #[error(
        "the header declares {declared} B of {what}, the file has {found} B; it was cut off or its header is wrong"
    )]
    Truncated {
        /// Of what.
        what: &'static str,
        /// Bytes declared.
        declared: u64,
        /// Bytes there.
        found: u64,
    },
    /// Compressed data is damaged.
    #[error("the compressed points are damaged; get the file again, or save it uncompressed")]
    Compressed,
    /// The file is correct, but a message cannot express it.
    #[error("{what} cannot be read; {remedy}")]
    Unsupported {
        /// What.
        what: String,
        /// What to do.
        remedy: &'static str,
    },
    /// The metadata that would describe the content contradicts itself.
    #[error(transparent)]
    Metadata(#[from] MetaError),
}
