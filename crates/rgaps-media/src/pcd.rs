//! PCD v0.7, the point cloud format of PCL: ascii, binary and binary_compressed in, binary out.
//!
//! All fields are kept unchanged; padding (fields named `_`) stays in the points' bytes but is no field of the message. The viewpoint is dropped,
//! since a message has none. PCD does not say whether a cloud is dense: it is, if no coordinate is NaN or infinite.

use std::io::Write;

use rgaps::types::{Datatype, Meta, MetaError, PointCloud, PointField};

use super::error::{FormatError, Location, Problem};
use super::header::{Lines, number, push_value, shortened};
use super::lzf;
use super::save::Stop;

/// Most fields of a header, including padding.
const COLUMNS_MAX: usize = 64;
const NO_MESSAGE_FIELD: &str = "leave out the field, or write it as a smaller type";

/// One field of the file, possibly padding.
#[derive(Clone, Debug, PartialEq)]
struct Column {
    name: String,
    size: u32,
    datatype: Datatype,
    count: u32,
}

impl Column {
    fn bytes(&self) -> u64 {
        u64::from(self.size) * u64::from(self.count)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Storage {
    Ascii,
    Binary,
    Compressed,
}

/// The content of a consistent header.
struct Plan {
    columns: Vec<Column>,
    meta: PointCloud,
    storage: Storage,
}

impl Plan {
    fn points(&self) -> usize {
        self.meta.points() as usize
    }

    fn point_bytes(&self) -> usize {
        self.meta.point_step as usize
    }
}

/// The cloud in a PCD file.
///
/// ```
/// use rgaps_media::pcd;
///
/// let file = "VERSION 0.7\nFIELDS x y z\nSIZE 4 4 4\nTYPE F F F\nWIDTH 2\nHEIGHT 1\nPOINTS 2\nDATA ascii\n1 2 3\n4 5 6\n";
/// let (cloud, points) = pcd::parse(file.as_bytes())?;
/// assert_eq!((cloud.points(), cloud.point_step, points.len()), (2, 12, 24));
/// let error = pcd::parse(file.replace("4 5 6", "4 5").as_bytes()).unwrap_err();
/// println!("{error}"); // with the line
/// # Ok::<(), rgaps_media::FormatError>(())
/// ```
pub fn parse(file: &[u8]) -> Result<(PointCloud, Vec<u8>), FormatError> {
    let mut lines = Lines::of("PCD", file);
    let plan = read_header(&mut lines)?;
    let payload = match plan.storage {
        Storage::Ascii => read_ascii(&plan, &mut lines)?,
        Storage::Binary => read_binary(&plan, &lines)?,
        Storage::Compressed => read_compressed(&plan, &mut lines)?,
    };
    let is_dense = coordinates_are_finite(&plan.meta, &payload);
    Ok((plan.meta.with_dense(is_dense), payload))
}

/// The words after each keyword, in any order of the keywords.
#[derive(Default)]
struct Header<'a> {
    fields: Option<Vec<&'a str>>,
    sizes: Option<Vec<&'a str>>,
    types: Option<Vec<&'a str>>,
    counts: Option<Vec<&'a str>>,
    width: Option<u32>,
    height: Option<u32>,
    points: Option<u64>,
}

fn read_header(lines: &mut Lines<'_>) -> Result<Plan, FormatError> {
    let not_pcd = Problem::NotThis { format: "PCD", wanted: "'# .PCD' or 'VERSION'" };
    match lines.rest() {
        [b'#' | b'V', ..] => {}
        _ => return Err(Location::Line(1).has(not_pcd)),
    }
    let mut header = Header::default();
    let mut version = false;
    let storage = loop {
        let line = lines.header("DATA line")?;
        let here = lines.here();
        let mut words = line.split_ascii_whitespace();
        let Some(keyword) = words.next().filter(|word| !word.starts_with('#')) else { continue };
        let first = words.clone().next().unwrap_or_default();
        match keyword {
            "VERSION" => match first {
                "0.7" | ".7" | "0.6" | ".6" => version = true,
                _ => return Err(unknown(here, first, "a version that is read (0.7)")),
            },
            "FIELDS" => header.fields = Some(list(here, words)?),
            "SIZE" => header.sizes = Some(list(here, words)?),
            "TYPE" => header.types = Some(list(here, words)?),
            "COUNT" => header.counts = Some(list(here, words)?),
            "WIDTH" => header.width = Some(number(here, first, "a number of points up to 4294967295")?),
            "HEIGHT" => header.height = Some(number(here, first, "a number of rows up to 4294967295")?),
            "POINTS" => header.points = Some(number(here, first, "a number of points")?),
            "VIEWPOINT" => {}
            "DATA" => break storage(here, first)?,
            _ => return Err(unknown(here, keyword, "a keyword of a PCD header")),
        }
    };
    if !version {
        return Err(lines.here().has(Problem::Missing { what: "VERSION" }));
    }
    plan(lines.here(), &header, storage)
}

fn storage(here: Location, word: &str) -> Result<Storage, FormatError> {
    match word {
        "ascii" => Ok(Storage::Ascii),
        "binary" => Ok(Storage::Binary),
        "binary_compressed" => Ok(Storage::Compressed),
        _ => Err(unknown(here, word, "ascii, binary or binary_compressed")),
    }
}

fn list<'a>(here: Location, words: impl Iterator<Item = &'a str>) -> Result<Vec<&'a str>, FormatError> {
    let words: Vec<&str> = words.take(COLUMNS_MAX + 1).collect();
    if words.len() > COLUMNS_MAX {
        let (found, limit) = (words.len() as u64, COLUMNS_MAX as u64);
        return Err(here.has(Problem::TooMany { what: "fields", found, limit }));
    }
    Ok(words)
}

fn unknown(here: Location, word: &str, wanted: &'static str) -> FormatError {
    here.has(Problem::Word { found: shortened(word), wanted })
}

/// Checks the parts of the header against each other.
fn plan(here: Location, header: &Header<'_>, storage: Storage) -> Result<Plan, FormatError> {
    let missing = |what| here.has(Problem::Missing { what });
    let fields = header.fields.as_ref().ok_or_else(|| missing("FIELDS"))?;
    let sizes = header.sizes.as_ref().ok_or_else(|| missing("SIZE"))?;
    let types = header.types.as_ref().ok_or_else(|| missing("TYPE"))?;
    let ones = vec!["1"; fields.len()];
    let counts = header.counts.as_ref().unwrap_or(&ones);
    let width = header.width.ok_or_else(|| missing("WIDTH"))?;
    let height = header.height.ok_or_else(|| missing("HEIGHT"))?;
    if fields.is_empty() {
        return Err(missing("field in FIELDS"));
    }
    let wanted = fields.len() as u64;
    for (what, found) in [("sizes", sizes.len()), ("types", types.len()), ("counts", counts.len())] {
        if found as u64 != wanted {
            return Err(here.has(Problem::Mismatch { what, found: found as u64, wanted }));
        }
    }
    let points = u64::from(width) * u64::from(height);
    if header.points.is_some_and(|found| found != points) {
        let found = header.points.unwrap_or_default();
        return Err(here.has(Problem::Mismatch { what: "POINTS", found, wanted: points }));
    }
    let mut columns = Vec::with_capacity(fields.len());
    for (((name, size), letter), count) in fields.iter().zip(sizes).zip(types).zip(counts) {
        columns.push(column(here, name, [size, letter, count])?);
    }
    let meta = meta(&columns, width, height).map_err(|error| here.has(error.into()))?;
    Ok(Plan { columns, meta, storage })
}

fn column(here: Location, name: &str, [size, letter, count]: [&str; 3]) -> Result<Column, FormatError> {
    let datatype = match (letter, size) {
        ("I", "1") => Datatype::Int8,
        ("I", "2") => Datatype::Int16,
        ("I", "4") => Datatype::Int32,
        ("U", "1") => Datatype::Uint8,
        ("U", "2") => Datatype::Uint16,
        ("U", "4") => Datatype::Uint32,
        ("F", "4") => Datatype::Float32,
        ("F", "8") => Datatype::Float64,
        _ => {
            let what =
                format!("field '{}' of TYPE {} and SIZE {}", shortened(name), shortened(letter), shortened(size));
            return Err(here.has(Problem::Unsupported { what, remedy: NO_MESSAGE_FIELD }));
        }
    };
    let count: u32 = number(here, count, "a number of elements")?;
    if count == 0 {
        return Err(unknown(here, "0", "a number of elements from 1"));
    }
    Ok(Column { name: name.to_owned(), size: datatype.bytes(), datatype, count })
}

fn meta(columns: &[Column], width: u32, height: u32) -> Result<PointCloud, MetaError> {
    let mut fields = Vec::with_capacity(columns.len());
    let mut point_step = 0_u32;
    for column in columns {
        if column.name != "_" {
            fields.push(PointField::new(&column.name, point_step, column.datatype)?.with_count(column.count));
        }
        let needed = u64::from(point_step) + column.bytes();
        point_step = u32::try_from(needed).map_err(|_| MetaError::RowTooLong { needed })?;
    }
    PointCloud::new(width, height, point_step, &fields)
}

fn read_binary(plan: &Plan, lines: &Lines<'_>) -> Result<Vec<u8>, FormatError> {
    // Some writers pad the file to a whole page; bytes after the points are ignored.
    Ok(declared("points", plan.meta.payload_bytes(), lines.byte(), lines.rest())?.to_vec())
}

/// The first `declared` bytes; an error if there are fewer.
fn declared<'a>(what: &'static str, declared: u64, at: Location, rest: &'a [u8]) -> Result<&'a [u8], FormatError> {
    let found = rest.len() as u64;
    let there = usize::try_from(declared).ok().and_then(|bytes| rest.get(..bytes));
    there.ok_or_else(|| at.has(Problem::Truncated { what, declared, found }))
}

fn read_ascii(plan: &Plan, lines: &mut Lines<'_>) -> Result<Vec<u8>, FormatError> {
    let wanted = plan.columns.iter().map(|column| column.count as usize).sum::<usize>();
    // A value takes at least a digit and a blank, and the last line may lack its line feed: this bounds the number of values.
    let least = (plan.points() as u64).saturating_mul(wanted as u64).saturating_mul(2).saturating_sub(1);
    declared("points as text, at least", least, lines.byte(), lines.rest())?;
    let mut payload = Vec::with_capacity(plan.points() * plan.point_bytes());
    for _ in 0..plan.points() {
        let line = loop {
            match lines.next()? {
                Some(line) if line.trim_ascii().is_empty() => {}
                Some(line) => break line,
                None => {
                    let (declared, found) = (plan.points() as u64, (payload.len() / plan.point_bytes()) as u64);
                    return Err(lines.here().has(Problem::Mismatch {
                        what: "lines of points",
                        found,
                        wanted: declared,
                    }));
                }
            }
        };
        let found = line.split_ascii_whitespace().count();
        if found != wanted {
            return Err(lines.here().has(Problem::Values { found, wanted }));
        }
        let mut words = line.split_ascii_whitespace();
        for column in &plan.columns {
            for word in words.by_ref().take(column.count as usize) {
                push_value(lines.here(), word, column.datatype, &mut payload)?;
            }
        }
    }
    Ok(payload)
}

/// Reads two lengths, then the compressed points: all values of the first field, then all of the second, and so on.
fn read_compressed(plan: &Plan, lines: &mut Lines<'_>) -> Result<Vec<u8>, FormatError> {
    let at = lines.byte();
    let [compressed, bytes] = [0, 4].map(|offset| {
        let word = lines.rest().get(offset..).and_then(|rest| rest.first_chunk());
        word.map(|word| u32::from_le_bytes(*word))
    });
    let (Some(compressed), Some(bytes)) = (compressed, bytes) else {
        let found = lines.rest().len() as u64;
        return Err(at.has(Problem::Truncated { what: "lengths before the points", declared: 8, found }));
    };
    let wanted = plan.meta.payload_bytes();
    if u64::from(bytes) != wanted {
        return Err(at.has(Problem::Mismatch { what: "B of uncompressed points", found: u64::from(bytes), wanted }));
    }
    lines.skip(8);
    let input = declared("compressed points", u64::from(compressed), lines.byte(), lines.rest())?;
    let by_field = lzf::decompress(input, bytes as usize).ok_or_else(|| lines.byte().has(Problem::Compressed))?;
    Ok(by_point(plan, &by_field))
}

fn by_point(plan: &Plan, by_field: &[u8]) -> Vec<u8> {
    let mut payload = vec![0; by_field.len()];
    let (mut rest, mut offset) = (by_field, 0);
    for column in &plan.columns {
        let bytes = column.bytes() as usize;
        let (values, others) = rest.split_at(bytes * plan.points());
        rest = others;
        for (point, value) in payload.chunks_exact_mut(plan.point_bytes()).zip(values.chunks_exact(bytes)) {
            point[offset..offset + bytes].copy_from_slice(value);
        }
        offset += bytes;
    }
    payload
}

/// Whether no x, y or z is NaN or infinite. The payload must be little-endian and packed.
pub(super) fn coordinates_are_finite(meta: &PointCloud, payload: &[u8]) -> bool {
    ["x", "y", "z"].into_iter().filter_map(|name| meta.field(name)).all(|field| {
        let at = field.offset as usize;
        let mut points = payload.chunks_exact((meta.point_step as usize).max(1));
        match field.datatype {
            Datatype::Float32 => {
                points.all(|point| point[at..].first_chunk().is_none_or(|x| f32::from_le_bytes(*x).is_finite()))
            }
            Datatype::Float64 => {
                points.all(|point| point[at..].first_chunk().is_none_or(|x| f64::from_le_bytes(*x).is_finite()))
            }
            _ => true,
        }
    })
}

/// Writes a cloud as binary PCD. The payload must have been checked against `meta`.
pub(super) fn encode(meta: &PointCloud, payload: &[u8], mut to: impl Write) -> Result<(), Stop> {
    let columns = columns(meta)?;
    let joined = |word: fn(&Column) -> String| columns.iter().map(word).collect::<Vec<_>>().join(" ");
    let points = meta.points();
    write!(
        to,
        "# .PCD v0.7 - Point Cloud Data file format\nVERSION 0.7\nFIELDS {}\nSIZE {}\nTYPE {}\nCOUNT {}\n\
         WIDTH {}\nHEIGHT {}\nVIEWPOINT 0 0 0 1 0 0 0\nPOINTS {points}\nDATA binary\n",
        joined(|column| column.name.clone()),
        joined(|column| column.size.to_string()),
        joined(|column| letter(column.datatype).to_owned()),
        joined(|column| column.count.to_string()),
        meta.width,
        meta.height,
    )?;
    let row_bytes = meta.width as usize * meta.point_step as usize;
    for row in payload.chunks((meta.row_step as usize).max(1)).take(meta.height as usize) {
        let row = &row[..row_bytes];
        match meta.is_bigendian {
            false => to.write_all(row)?,
            true => to.write_all(&swapped(&columns, meta, row))?,
        }
    }
    Ok(())
}

/// The fields in byte order, with padding in the gaps.
fn columns(meta: &PointCloud) -> Result<Vec<Column>, Stop> {
    let mut fields = meta.fields().to_vec();
    fields.sort_by_key(|field| field.offset);
    let padding = |bytes| Column { name: "_".to_owned(), size: 1, datatype: Datatype::Uint8, count: bytes };
    let mut columns = Vec::with_capacity(2 * fields.len() + 1);
    let mut end = 0;
    for field in &fields {
        let name = field.name.as_str().to_owned();
        if name == "_" || !name.chars().all(|c| c.is_ascii_graphic()) {
            let what = format!("a field named '{name}'");
            return Err(Stop::Inexpressible {
                what,
                remedy: "name fields by printable ASCII characters without blanks",
            });
        }
        if field.offset < end {
            let what = format!("field '{name}', which overlaps another");
            return Err(Stop::Inexpressible { what, remedy: "publish fields that lie side by side" });
        }
        if field.offset > end {
            columns.push(padding(field.offset - end));
        }
        columns.push(Column { name, size: field.datatype.bytes(), datatype: field.datatype, count: field.count });
        end = field.end() as u32;
    }
    if meta.point_step > end {
        columns.push(padding(meta.point_step - end));
    }
    if columns.is_empty() {
        return Err(Stop::Inexpressible {
            what: "points without bytes".to_owned(),
            remedy: "publish at least one field",
        });
    }
    Ok(columns)
}

fn letter(datatype: Datatype) -> &'static str {
    match datatype {
        Datatype::Int8 | Datatype::Int16 | Datatype::Int32 => "I",
        Datatype::Uint8 | Datatype::Uint16 | Datatype::Uint32 => "U",
        Datatype::Float32 | Datatype::Float64 => "F",
    }
}

/// A row with the bytes of every element swapped.
fn swapped(columns: &[Column], meta: &PointCloud, row: &[u8]) -> Vec<u8> {
    let mut row = row.to_vec();
    for point in row.chunks_exact_mut(meta.point_step as usize) {
        let mut rest = point;
        for column in columns {
            let (field, others) = rest.split_at_mut(column.bytes() as usize);
            field.chunks_exact_mut(column.size as usize).for_each(<[u8]>::reverse);
            rest = others;
        }
    }
    row
}

/// For the fuzzer: any bytes are parsed or refused, and a parsed cloud survives saving.
pub fn fuzz_pcd(data: &[u8]) -> bool {
    let Ok((meta, payload)) = parse(data) else { return false };
    assert_survives(&meta, &payload);
    true
}

/// Panics if a parsed cloud is inconsistent or does not read back from a saved file.
pub(super) fn assert_survives(meta: &PointCloud, payload: &[u8]) {
    assert_eq!(meta.check(payload.len() as u64), Ok(()));
    let mut file = Vec::new();
    match encode(meta, payload, &mut file) {
        Ok(()) => assert_eq!(parse(&file).as_ref().map(|(meta, payload)| (meta, &payload[..])), Ok((meta, payload))),
        Err(Stop::Inexpressible { .. }) => {}
        Err(Stop::Io(error)) => panic!("memory refused to be written: {error}"),
    }
}
