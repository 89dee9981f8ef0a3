//! What can be wrong with a file, said with its name, the place and the remedy.

use std::fmt;
use std::io;
use std::path::PathBuf;

use rgaps::types::MetaError;

/// A file was not loaded. Other files are not affected.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The system did not let us read it.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Its name ends in nothing that we read.
    #[error("{}: not a kind of file that rgaps reads; give one that ends in {}", path.display(), super::input::EXTENSIONS)]
    Extension {
        /// The file.
        path: PathBuf,
    },
    /// A folder without a file that we read.
    #[error("{}: no file in it ends in {}", path.display(), super::input::EXTENSIONS)]
    NothingThere {
        /// The folder.
        path: PathBuf,
    },
    /// It is too large to be read at once.
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
        /// What the decoder said.
        source: image::ImageError,
    },
    /// Its contents break the rules of its format.
    #[error("{}, {source}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// Where and what.
        source: FormatError,
    },
}

/// A payload was not saved; a file that was begun has been removed.
#[derive(Debug, thiserror::Error)]
pub enum SaveError {
    /// The system did not let us write.
    #[error("{}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The picture encoder failed.
    #[error("{}: the picture was not written: {source}", path.display())]
    Picture {
        /// The file.
        path: PathBuf,
        /// What the encoder said.
        source: image::ImageError,
    },
    /// Metadata and payload do not belong together.
    #[error("{}: {source}", path.display())]
    Metadata {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: MetaError,
    },
    /// The format has no words for it.
    #[error("{}: {format} cannot hold {what}; {remedy}", path.display())]
    Inexpressible {
        /// The file.
        path: PathBuf,
        /// The format.
        format: &'static str,
        /// What it cannot hold.
        what: String,
        /// What to do.
        remedy: &'static str,
    },
}

/// A file's contents break the rules of its format.
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

/// What breaks the rules of a format.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// Another format, or none.
    #[error("this is not {format}: it should begin with {wanted}; rename the file after its real format")]
    NotThis {
        /// The format that the file's name promises.
        format: &'static str,
        /// How it begins.
        wanted: &'static str,
    },
    /// A line or header without end, or bytes that are no text.
    #[error("the header is not text in lines of at most {limit} B; the file is damaged or not {format}")]
    NotText {
        /// The format.
        format: &'static str,
        /// The longest line.
        limit: usize,
    },
    /// Something must be said and is not.
    #[error("the header has no {what}; add it or write the file again")]
    Missing {
        /// What must be there.
        what: &'static str,
    },
    /// A word is not one of those that may stand there.
    #[error("'{found}' is not {wanted}")]
    Word {
        /// The word.
        found: String,
        /// What may stand there.
        wanted: &'static str,
    },
    /// A number is not the one that follows from others.
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
    /// Too much of something.
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
    /// Compressed data do not make sense.
    #[error("the compressed points are damaged; get the file again, or save it uncompressed")]
    Compressed,
    /// A correct file that has no counterpart in a message.
    #[error("{what} cannot be read; {remedy}")]
    Unsupported {
        /// What.
        what: String,
        /// What to do.
        remedy: &'static str,
    },
    /// The metadata that would describe the contents contradict themselves.
    #[error(transparent)]
    Metadata(#[from] MetaError),
}
