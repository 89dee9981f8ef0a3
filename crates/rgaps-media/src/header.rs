//! Reads lines of text at the start of a file, and lines of values after it. Input is not trusted: lines are bounded and counted.

use rgaps::types::Datatype;

use super::error::{FormatError, Location, Problem};

/// Most bytes of a line: 64 Ki.
pub(super) const LINE_BYTES_MAX: usize = 1 << 16;
/// Most lines of a header.
pub(super) const HEADER_LINES_MAX: usize = 4096;

/// The lines of a file, from its start.
pub(super) struct Lines<'a> {
    format: &'static str,
    rest: &'a [u8],
    total: usize,
    number: usize,
}

impl<'a> Lines<'a> {
    pub(super) fn of(format: &'static str, file: &'a [u8]) -> Self {
        Self { format, rest: file, total: file.len(), number: 0 }
    }

    /// The next line without its end, or `None` at the end of the file.
    pub(super) fn next(&mut self) -> Result<Option<&'a str>, FormatError> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        self.number += 1;
        let window = &self.rest[..self.rest.len().min(LINE_BYTES_MAX + 1)];
        let end = match window.iter().position(|&byte| byte == b'\n') {
            Some(end) => end,
            // The last line of a file may lack its line feed.
            None if window.len() <= LINE_BYTES_MAX => window.len(),
            None => return Err(self.not_text()),
        };
        let line = str::from_utf8(&self.rest[..end]).map_err(|_| self.not_text())?;
        self.rest = self.rest.get(end + 1..).unwrap_or_default();
        Ok(Some(line.strip_suffix('\r').unwrap_or(line)))
    }

    /// The next line of a header. If there is none, the error says that `what` is missing.
    pub(super) fn header(&mut self, what: &'static str) -> Result<&'a str, FormatError> {
        if self.number == HEADER_LINES_MAX {
            let (found, limit) = (self.number as u64 + 1, HEADER_LINES_MAX as u64);
            return Err(self.here().has(Problem::TooMany { what: "header lines", found, limit }));
        }
        match self.next()? {
            Some(line) => Ok(line),
            None => Err(self.here().has(Problem::Missing { what })),
        }
    }

    /// The location of the line read last.
    pub(super) fn here(&self) -> Location {
        Location::Line(self.number.max(1))
    }

    /// The location of the first unread byte.
    pub(super) fn byte(&self) -> Location {
        Location::Byte(self.total - self.rest.len())
    }

    /// The unread bytes.
    pub(super) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Skips bytes that are not lines.
    pub(super) fn skip(&mut self, bytes: usize) {
        self.rest = self.rest.get(bytes..).unwrap_or_default();
    }

    fn not_text(&self) -> FormatError {
        self.here().has(Problem::NotText { format: self.format, limit: LINE_BYTES_MAX })
    }
}

/// A number in a header.
pub(super) fn number<T: std::str::FromStr>(
    place: Location,
    word: &str,
    wanted: &'static str,
) -> Result<T, FormatError> {
    word.parse().map_err(|_| place.has(Problem::Word { found: shortened(word), wanted }))
}

/// Parses `word` and appends its value, little-endian.
pub(super) fn push_value(place: Location, word: &str, datatype: Datatype, to: &mut Vec<u8>) -> Result<(), FormatError> {
    macro_rules! push {
        ($number:ty, $wanted:literal) => {
            to.extend_from_slice(&number::<$number>(place, word, $wanted)?.to_le_bytes())
        };
    }
    match datatype {
        Datatype::Int8 => push!(i8, "a whole number from -128 to 127"),
        Datatype::Uint8 => push!(u8, "a whole number from 0 to 255"),
        Datatype::Int16 => push!(i16, "a whole number of 16 bits"),
        Datatype::Uint16 => push!(u16, "a whole number from 0 to 65535"),
        Datatype::Int32 => push!(i32, "a whole number of 32 bits"),
        Datatype::Uint32 => push!(u32, "a whole number from 0 to 4294967295"),
        Datatype::Float32 => push!(f32, "a number"),
        Datatype::Float64 => push!(f64, "a number"),
    }
    Ok(())
}

/// The start of an untrusted word, for an error text.
pub(super) fn shortened(word: &str) -> String {
    word.chars().take(40).map(|c| if c.is_control() { '?' } else { c }).collect()
}
