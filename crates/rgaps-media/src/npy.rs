//! NPY, the array format of NumPy: versions 1 to 3 in, version 1 out, C and Fortran order as strides.
//!
//! ```text
//!  0  "\x93NUMPY"
//!  6  u8        major version     1: the length has 2 bytes; 2, 3: it has 4
//!  7  u8        minor version     0
//!  8  u16|u32   header length
//! 10  {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }   padded with blanks, ended by a line feed
//!     elements
//! ```

use std::io::Write;

use rgaps::types::{DType, DTypeCode, Meta, NDIM_MAX, Tensor};

use super::FILE_BYTES_MAX;
use super::error::{FormatError, Location, Problem};
use super::header::shortened;
use super::save::Stop;

const MAGIC: &[u8] = b"\x93NUMPY";
/// Most bytes of a header.
const HEADER_BYTES_MAX: usize = 1 << 16;
const NO_OBJECTS: &str = "save a plain array of numbers (not objects, records or text) by numpy.save";

/// The array in an NPY file.
pub fn parse(file: &[u8]) -> Result<(Tensor, Vec<u8>), FormatError> {
    let (dictionary, start) = header(file)?;
    let said = Dictionary::parse(dictionary)?;
    let (dtype, swap_bytes) = dtype(said.descr)?;
    let here = Location::Line(1);
    let c_order = Tensor::new(dtype, said.shape()).map_err(|error| here.has(error.into()))?;
    let meta = match said.fortran_order {
        false => c_order,
        true => fortran(dtype, said.shape()).map_err(|error| here.has(error.into()))?,
    };
    let declared = meta.payload_bytes();
    let there = usize::try_from(declared).ok().and_then(|bytes| file[start..].get(..bytes));
    let found = (file.len() - start) as u64;
    let truncated = || Location::Byte(start).has(Problem::Truncated { what: "elements", declared, found });
    let mut payload = there.ok_or_else(truncated)?.to_vec();
    if swap_bytes > 1 {
        payload.chunks_exact_mut(swap_bytes).for_each(<[u8]>::reverse);
    }
    Ok((meta, payload))
}

/// The text of the header, and where the elements start.
fn header(file: &[u8]) -> Result<(&str, usize), FormatError> {
    let Some(rest) = file.strip_prefix(MAGIC) else {
        return Err(Location::Byte(0).has(Problem::NotThis { format: "NPY", wanted: "\\x93NUMPY" }));
    };
    let (length, start) = match *rest {
        [1, _, a, b, ..] => (usize::from(u16::from_le_bytes([a, b])), 10),
        [2 | 3, _, a, b, c, d, ..] => (u32::from_le_bytes([a, b, c, d]) as usize, 12),
        [major, ..] if major != 1 && major != 2 && major != 3 => {
            let found = major.to_string();
            return Err(Location::Byte(6).has(Problem::Word { found, wanted: "a version that is read (1, 2 or 3)" }));
        }
        _ => return Err(Location::Byte(6).has(Problem::Missing { what: "length" })),
    };
    if length > HEADER_BYTES_MAX {
        let (found, limit) = (length as u64, HEADER_BYTES_MAX as u64);
        return Err(Location::Byte(8).has(Problem::TooMany { what: "B of header", found, limit }));
    }
    let Some(text) = file.get(start..start + length) else {
        let (declared, found) = (length as u64, (file.len() - start) as u64);
        return Err(Location::Byte(start).has(Problem::Truncated { what: "header", declared, found }));
    };
    let text = str::from_utf8(text)
        .map_err(|_| Location::Byte(start).has(Problem::NotText { format: "NPY", limit: HEADER_BYTES_MAX }))?;
    Ok((text, start + length))
}

/// The content of the header.
#[derive(Debug, PartialEq)]
struct Dictionary<'a> {
    descr: &'a str,
    fortran_order: bool,
    shape: [i64; NDIM_MAX],
    ndim: usize,
}

impl<'a> Dictionary<'a> {
    fn shape(&self) -> &[i64] {
        &self.shape[..self.ndim]
    }

    /// Reads the Python dictionary that NumPy writes: three keys in any order, and nothing else.
    fn parse(text: &'a str) -> Result<Self, FormatError> {
        let mut python = Python(text);
        let (mut descr, mut order, mut shape) = (None, None, None);
        python.expect('{')?;
        while !python.accept('}') {
            let key = python.string("a key of an NPY header")?;
            python.expect(':')?;
            match key {
                "descr" => descr = Some(python.descr()?),
                "fortran_order" => order = Some(python.boolean()?),
                "shape" => shape = Some(python.tuple()?),
                _ => return Err(python.unknown(key, "descr, fortran_order or shape")),
            }
            if !python.accept(',') {
                python.expect('}')?;
                break;
            }
        }
        let missing = |what| Location::Line(1).has(Problem::Missing { what });
        let (shape, ndim) = shape.ok_or_else(|| missing("shape"))?;
        let descr = descr.ok_or_else(|| missing("descr"))?;
        Ok(Self { descr, fortran_order: order.ok_or_else(|| missing("fortran_order"))?, shape, ndim })
    }
}

/// Parses the few Python literals that a header consists of.
struct Python<'a>(&'a str);

impl<'a> Python<'a> {
    fn accept(&mut self, c: char) -> bool {
        self.0 = self.0.trim_ascii_start();
        match self.0.strip_prefix(c) {
            Some(rest) => {
                self.0 = rest;
                true
            }
            None => false,
        }
    }

    fn expect(&mut self, c: char) -> Result<(), FormatError> {
        let wanted = match c {
            '{' => "'{', the start of an NPY header",
            ':' => "':' after a key",
            '(' => "'(', the start of a shape",
            ')' => "')' after a shape",
            _ => "',' or '}' after a value",
        };
        if self.accept(c) { Ok(()) } else { Err(self.unknown(self.0, wanted)) }
    }

    fn unknown(&self, found: &str, wanted: &'static str) -> FormatError {
        Location::Line(1).has(Problem::Word { found: shortened(found), wanted })
    }

    fn string(&mut self, wanted: &'static str) -> Result<&'a str, FormatError> {
        let text = self.0.trim_ascii_start();
        for quote in ['\'', '"'] {
            if let Some((string, rest)) = text.strip_prefix(quote).and_then(|text| text.split_once(quote)) {
                self.0 = rest;
                return Ok(string);
            }
        }
        Err(self.unknown(text, wanted))
    }

    fn descr(&mut self) -> Result<&'a str, FormatError> {
        if self.0.trim_ascii_start().starts_with('[') {
            let what = "an array of records".to_owned();
            return Err(Location::Line(1).has(Problem::Unsupported { what, remedy: NO_OBJECTS }));
        }
        self.string("an element type such as '<f4'")
    }

    fn boolean(&mut self) -> Result<bool, FormatError> {
        let text = self.0.trim_ascii_start();
        for (word, value) in [("True", true), ("False", false)] {
            if let Some(rest) = text.strip_prefix(word) {
                self.0 = rest;
                return Ok(value);
            }
        }
        Err(self.unknown(text, "True or False"))
    }

    fn tuple(&mut self) -> Result<([i64; NDIM_MAX], usize), FormatError> {
        let (mut shape, mut ndim) = ([0; NDIM_MAX], 0);
        self.expect('(')?;
        while !self.accept(')') {
            let place = shape.get_mut(ndim).ok_or(Problem::TooMany {
                what: "dimensions",
                found: ndim as u64 + 1,
                limit: NDIM_MAX as u64,
            });
            *place.map_err(|problem| Location::Line(1).has(problem))? = self.whole()?;
            ndim += 1;
            if !self.accept(',') {
                self.expect(')')?;
                break;
            }
        }
        Ok((shape, ndim))
    }

    fn whole(&mut self) -> Result<i64, FormatError> {
        let text = self.0.trim_ascii_start();
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, rest) = text.split_at(digits);
        let value = number.parse().map_err(|_| self.unknown(text, "a number of elements"))?;
        // Python 2 wrote long integers with a trailing L.
        self.0 = rest.strip_prefix('L').unwrap_or(rest);
        Ok(value)
    }
}

/// The element type, and the size of the units whose bytes must be swapped (0 for none).
fn dtype(descr: &str) -> Result<(DType, usize), FormatError> {
    let unsupported = || {
        let what = format!("elements of type '{}'", shortened(descr));
        Location::Line(1).has(Problem::Unsupported { what, remedy: NO_OBJECTS })
    };
    let big_endian = descr.starts_with('>');
    let dtype = match descr.trim_start_matches(['<', '>', '|', '=']) {
        "f2" => DType::FLOAT16,
        "f4" => DType::FLOAT32,
        "f8" => DType::FLOAT64,
        "i1" => DType::INT8,
        "i2" => DType::INT16,
        "i4" => DType::INT32,
        "i8" => DType::INT64,
        "u1" => DType::UINT8,
        "u2" => DType::UINT16,
        "u4" => DType::UINT32,
        "u8" => DType::UINT64,
        "b1" => DType::BOOL,
        "c8" => DType::COMPLEX64,
        "c16" => DType::COMPLEX128,
        _ => return Err(unsupported()),
    };
    // A complex number is two floats, each swapped by itself.
    let parts = if dtype.code == DTypeCode::COMPLEX { 2 } else { 1 };
    let swap_bytes = if big_endian { dtype.bytes() as usize / parts } else { 0 };
    Ok((dtype, swap_bytes))
}

fn descr(dtype: DType) -> Option<String> {
    let letter = match dtype.code {
        DTypeCode::FLOAT if matches!(dtype.bits, 16 | 32 | 64) => 'f',
        DTypeCode::INT if matches!(dtype.bits, 8 | 16 | 32 | 64) => 'i',
        DTypeCode::UINT if matches!(dtype.bits, 8 | 16 | 32 | 64) => 'u',
        DTypeCode::BOOL if dtype.bits == 8 => 'b',
        DTypeCode::COMPLEX if matches!(dtype.bits, 64 | 128) => 'c',
        _ => return None,
    };
    let order = if dtype.bits == 8 { '|' } else { '<' };
    Some(format!("{order}{letter}{}", dtype.bits / 8))
}

/// A tensor in Fortran order: the first dimension is contiguous.
fn fortran(dtype: DType, shape: &[i64]) -> Result<Tensor, rgaps::types::MetaError> {
    let mut strides = [0; NDIM_MAX];
    let mut stride = 1_i64;
    for (place, &elements) in strides.iter_mut().zip(shape) {
        *place = stride;
        stride = stride.saturating_mul(elements.max(1));
    }
    Tensor::strided(dtype, shape, &strides[..shape.len()], 0)
}

/// Writes a tensor as NPY. The payload must contain all bytes that `meta` describes.
pub(super) fn encode(meta: &Tensor, payload: &[u8], mut to: impl Write) -> Result<(), Stop> {
    let dtype = meta.dtype();
    let inexpressible = |what, remedy| Stop::Inexpressible { what, remedy };
    let Some(descr) = descr(dtype) else {
        return Err(inexpressible(format!("elements of type {dtype}"), "publish them as a type of NumPy"));
    };
    let bytes = meta.elements().saturating_mul(dtype.bytes());
    if bytes > FILE_BYTES_MAX {
        let what = format!("{bytes} B of elements (at most {FILE_BYTES_MAX} B are written)");
        return Err(inexpressible(what, "publish a tensor whose dimensions are all there"));
    }
    // Lanes become one more dimension, the last. They are contiguous, so an array with lanes is not written in Fortran order.
    let one_lane = dtype.lanes == 1;
    let same = |tensor: Result<Tensor, _>| tensor.is_ok_and(|tensor| tensor.strides() == meta.strides());
    let c_order = same(Tensor::new(dtype, meta.shape()));
    let fortran_order = !c_order && one_lane && same(fortran(dtype, meta.shape()));
    let lanes = (!one_lane).then_some(i64::from(dtype.lanes));
    write_header(&descr, fortran_order, meta.shape().iter().copied().chain(lanes), &mut to)?;
    let start = meta.byte_offset() as usize;
    if c_order || fortran_order {
        to.write_all(&payload[start..start + bytes as usize])?;
        return Ok(());
    }
    gather(meta, payload, to)
}

fn write_header(
    descr: &str,
    fortran_order: bool,
    shape: impl Iterator<Item = i64>,
    to: &mut impl Write,
) -> Result<(), Stop> {
    let shape: String = shape.map(|elements| format!("{elements}, ")).collect();
    let order = if fortran_order { "True" } else { "False" };
    let mut header = format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': ({}), }}", shape.trim_end());
    // NumPy starts the elements at a multiple of 64.
    let blanks = (MAGIC.len() + 4 + header.len() + 1).next_multiple_of(64) - (MAGIC.len() + 4 + header.len() + 1);
    header.extend(std::iter::repeat_n(' ', blanks));
    header.push('\n');
    to.write_all(MAGIC)?;
    to.write_all(&[1, 0])?;
    // Eight dimensions of twenty digits are far below 64 KiB.
    to.write_all(&(header.len() as u16).to_le_bytes())?;
    to.write_all(header.as_bytes())?;
    Ok(())
}

/// Writes the elements in C order, following any strides.
fn gather(meta: &Tensor, payload: &[u8], mut to: impl Write) -> Result<(), Stop> {
    let element_bytes = meta.dtype().bytes() as usize;
    let mut index = [0_i64; NDIM_MAX];
    for _ in 0..meta.elements() {
        let element: i64 = index.iter().zip(meta.strides()).map(|(at, stride)| at * stride).sum();
        let at = (meta.byte_offset() as i64 + element * element_bytes as i64) as usize;
        to.write_all(&payload[at..at + element_bytes])?;
        // Counts like an odometer: the last dimension changes fastest.
        for (at, &elements) in index.iter_mut().zip(meta.shape()).rev() {
            *at += 1;
            if *at < elements {
                break;
            }
            *at = 0;
        }
    }
    Ok(())
}

/// For the fuzzer: any bytes are parsed or refused, and a parsed array survives saving.
pub fn fuzz_npy(data: &[u8]) -> bool {
    let Ok((meta, payload)) = parse(data) else { return false };
    assert_eq!(meta.check(payload.len() as u64), Ok(()));
    let mut file = Vec::new();
    assert!(encode(&meta, &payload, &mut file).is_ok(), "what NPY said, NPY can say");
    assert_eq!(parse(&file), Ok((meta, payload)));
    true
}
