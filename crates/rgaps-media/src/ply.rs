//! PLY, the Stanford polygon format: the vertices of ascii and binary files as points, all their scalar properties as fields.
//!
//! Elements before the vertices are skipped, those after them (faces) are ignored. Big-endian values are swapped. Gaps align the fields.

use rgaps::types::{Datatype, PointCloud, PointField};

use super::error::{FormatError, Location, Problem};
use super::header::{Lines, number, push_value, shortened};
use super::pcd::{assert_survives, coordinates_are_finite};

/// Most properties of an element.
const PROPERTIES_MAX: usize = 256;
/// Most elements of a header.
const ELEMENTS_MAX: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Storage {
    Ascii,
    LittleEndian,
    BigEndian,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Shape {
    Scalar(Datatype),
    List { count: Datatype, item: Datatype },
}

struct Element<'a> {
    name: &'a str,
    count: u64,
    properties: Vec<(&'a str, Shape)>,
}

/// The vertices of a PLY file as a cloud.
pub fn parse(file: &[u8]) -> Result<(PointCloud, Vec<u8>), FormatError> {
    let mut lines = Lines::of("PLY", file);
    let (storage, elements) = read_header(&mut lines)?;
    let here = lines.here();
    for element in &elements {
        if element.name == "vertex" {
            let meta = meta(here, element)?;
            let payload = match storage {
                Storage::Ascii => read_ascii(element, &meta, &mut lines)?,
                Storage::LittleEndian | Storage::BigEndian => read_binary(storage, element, &meta, &lines)?,
            };
            let is_dense = coordinates_are_finite(&meta, &payload);
            return Ok((meta.with_dense(is_dense), payload));
        }
        skip(storage, element, &mut lines)?;
    }
    Err(here.has(Problem::Missing { what: "element vertex" }))
}

fn read_header<'a>(lines: &mut Lines<'a>) -> Result<(Storage, Vec<Element<'a>>), FormatError> {
    if !lines.rest().starts_with(b"ply\n") && !lines.rest().starts_with(b"ply\r\n") {
        return Err(Location::Line(1).has(Problem::NotThis { format: "PLY", wanted: "a line 'ply'" }));
    }
    lines.header("line 'ply'")?;
    let mut storage = None;
    let mut elements: Vec<Element<'a>> = Vec::new();
    loop {
        let line = lines.header("end_header")?;
        let here = lines.here();
        let words: Vec<&str> = line.split_ascii_whitespace().take(8).collect();
        match words[..] {
            [] | ["comment" | "obj_info", ..] => {}
            ["format", kind, "1.0"] => storage = Some(self::storage(here, kind)?),
            ["element", name, count] => {
                let count = number(here, count, "a number of elements")?;
                elements.push(Element { name, count, properties: Vec::new() });
                at_most(here, "elements", elements.len(), ELEMENTS_MAX)?;
            }
            ["property", ref property @ ..] => {
                let Some(element) = elements.last_mut() else {
                    return Err(here.has(Problem::Missing { what: "element before the property" }));
                };
                element.properties.push(self::property(here, line, property)?);
                at_most(here, "properties", element.properties.len(), PROPERTIES_MAX)?;
            }
            ["end_header"] => break,
            _ => return Err(unknown(here, line, "a line of a PLY 1.0 header")),
        }
    }
    let storage = storage.ok_or_else(|| lines.here().has(Problem::Missing { what: "format" }))?;
    Ok((storage, elements))
}

fn storage(here: Location, word: &str) -> Result<Storage, FormatError> {
    match word {
        "ascii" => Ok(Storage::Ascii),
        "binary_little_endian" => Ok(Storage::LittleEndian),
        "binary_big_endian" => Ok(Storage::BigEndian),
        _ => Err(unknown(here, word, "ascii, binary_little_endian or binary_big_endian")),
    }
}

fn property<'a>(here: Location, line: &str, words: &[&'a str]) -> Result<(&'a str, Shape), FormatError> {
    match *words {
        ["list", count, item, name] => {
            let (count, item) = (datatype(here, count)?, datatype(here, item)?);
            if matches!(count, Datatype::Float32 | Datatype::Float64) {
                return Err(unknown(here, line, "a list counted by whole numbers"));
            }
            Ok((name, Shape::List { count, item }))
        }
        [kind, name] => Ok((name, Shape::Scalar(datatype(here, kind)?))),
        _ => Err(unknown(here, line, "'property TYPE NAME' or 'property list TYPE TYPE NAME'")),
    }
}

fn datatype(here: Location, word: &str) -> Result<Datatype, FormatError> {
    match word {
        "char" | "int8" => Ok(Datatype::Int8),
        "uchar" | "uint8" => Ok(Datatype::Uint8),
        "short" | "int16" => Ok(Datatype::Int16),
        "ushort" | "uint16" => Ok(Datatype::Uint16),
        "int" | "int32" => Ok(Datatype::Int32),
        "uint" | "uint32" => Ok(Datatype::Uint32),
        "float" | "float32" => Ok(Datatype::Float32),
        "double" | "float64" => Ok(Datatype::Float64),
        _ => Err(unknown(here, word, "a PLY type such as float, uchar or int32")),
    }
}

fn unknown(here: Location, word: &str, wanted: &'static str) -> FormatError {
    here.has(Problem::Word { found: shortened(word), wanted })
}

fn at_most(here: Location, what: &'static str, found: usize, limit: usize) -> Result<(), FormatError> {
    match found > limit {
        true => Err(here.has(Problem::TooMany { what, found: found as u64, limit: limit as u64 })),
        false => Ok(()),
    }
}

/// The cloud's layout: each field at a multiple of its size, so that kernels and array libraries can view it. A coloured vertex of 15 B in the file
/// is a point of 16 B.
fn meta(here: Location, vertex: &Element<'_>) -> Result<PointCloud, FormatError> {
    let mut fields = Vec::with_capacity(vertex.properties.len());
    let (mut end, mut largest) = (0_u32, 1);
    for &(name, shape) in &vertex.properties {
        match shape {
            Shape::Scalar(datatype) => {
                let bytes = datatype.bytes();
                let offset = end.next_multiple_of(bytes);
                fields.push(PointField::new(name, offset, datatype).map_err(|error| here.has(error.into()))?);
                (end, largest) = (offset + bytes, bytes.max(largest));
            }
            Shape::List { .. } => {
                let what = format!("the list '{}' of the vertices", shortened(name));
                return Err(here.has(Problem::Unsupported { what, remedy: "save the vertices without it" }));
            }
        }
    }
    if fields.is_empty() {
        return Err(here.has(Problem::Missing { what: "property of element vertex" }));
    }
    let limit = u64::from(u32::MAX);
    let points = u32::try_from(vertex.count)
        .map_err(|_| here.has(Problem::TooMany { what: "vertices", found: vertex.count, limit }))?;
    let cloud = PointCloud::new(points, 1, end.next_multiple_of(largest), &fields);
    cloud.map_err(|error| here.has(error.into()))
}

fn truncated(what: &'static str, declared: u64, at: Location, rest: &[u8]) -> FormatError {
    at.has(Problem::Truncated { what, declared, found: rest.len() as u64 })
}

fn read_ascii(vertex: &Element<'_>, meta: &PointCloud, lines: &mut Lines<'_>) -> Result<Vec<u8>, FormatError> {
    let wanted = vertex.properties.len();
    // A value takes at least a digit and a blank, and the last line may lack its line feed: this bounds the number of values.
    let least = vertex.count.saturating_mul(wanted as u64).saturating_mul(2).saturating_sub(1);
    if least > lines.rest().len() as u64 {
        return Err(truncated("vertices as text, at least", least, lines.byte(), lines.rest()));
    }
    let mut payload = Vec::with_capacity(vertex.count as usize * meta.point_step as usize);
    for read in 0..vertex.count {
        let line = value_line(lines, vertex, read)?;
        let found = line.split_ascii_whitespace().count();
        if found != wanted {
            return Err(lines.here().has(Problem::Values { found, wanted }));
        }
        let point = payload.len();
        for (word, field) in line.split_ascii_whitespace().zip(meta.fields()) {
            payload.resize(point + field.offset as usize, 0);
            push_value(lines.here(), word, field.datatype, &mut payload)?;
        }
        payload.resize(point + meta.point_step as usize, 0);
    }
    Ok(payload)
}

/// The next line with values, after `read` elements.
fn value_line<'a>(lines: &mut Lines<'a>, element: &Element<'_>, read: u64) -> Result<&'a str, FormatError> {
    loop {
        match lines.next()? {
            Some(line) if line.trim_ascii().is_empty() => {}
            Some(line) => return Ok(line),
            None => {
                let (found, wanted) = (read, element.count);
                return Err(lines.here().has(Problem::Mismatch { what: "lines of elements", found, wanted }));
            }
        }
    }
}

fn read_binary(
    storage: Storage,
    vertex: &Element<'_>,
    meta: &PointCloud,
    lines: &Lines<'_>,
) -> Result<Vec<u8>, FormatError> {
    let vertex_bytes: u32 = meta.fields().iter().map(|field| field.datatype.bytes()).sum();
    let bytes = vertex.count * u64::from(vertex_bytes);
    let there = usize::try_from(bytes).ok().and_then(|bytes| lines.rest().get(..bytes));
    let there = there.ok_or_else(|| truncated("vertices", bytes, lines.byte(), lines.rest()))?;
    let mut payload = if vertex_bytes == meta.point_step { there.to_vec() } else { spread(there, vertex_bytes, meta) };
    if storage == Storage::BigEndian {
        for point in payload.chunks_exact_mut(meta.point_step as usize) {
            for field in meta.fields() {
                point[field.offset as usize..field.end() as usize].reverse();
            }
        }
    }
    Ok(payload)
}

/// Copies each value of the vertices, which have no gaps, to where its field is.
fn spread(vertices: &[u8], vertex_bytes: u32, meta: &PointCloud) -> Vec<u8> {
    let step = meta.point_step as usize;
    let mut payload = vec![0; meta.points() as usize * step];
    for (vertex, point) in vertices.chunks_exact(vertex_bytes as usize).zip(payload.chunks_exact_mut(step)) {
        let mut rest = vertex;
        for field in meta.fields() {
            let value;
            (value, rest) = rest.split_at(field.datatype.bytes() as usize);
            point[field.offset as usize..field.end() as usize].copy_from_slice(value);
        }
    }
    payload
}

/// Skips an element before the vertices.
fn skip(storage: Storage, element: &Element<'_>, lines: &mut Lines<'_>) -> Result<(), FormatError> {
    if storage == Storage::Ascii {
        for read in 0..element.count {
            value_line(lines, element, read)?;
        }
        return Ok(());
    }
    let scalars = element.properties.iter().map(|&(_, shape)| match shape {
        Shape::Scalar(datatype) => Some(u64::from(datatype.bytes())),
        Shape::List { .. } => None,
    });
    if let Some(bytes) = scalars.sum::<Option<u64>>() {
        // All elements have the same length, so this is one step, however many the file claims.
        return skip_bytes(lines, element.count.saturating_mul(bytes));
    }
    // Each iteration consumes at least the count of a list, so the file's length bounds the loop.
    for _ in 0..element.count {
        for &(_, shape) in &element.properties {
            let bytes = match shape {
                Shape::Scalar(datatype) => u64::from(datatype.bytes()),
                Shape::List { count, item } => {
                    let items = list_count(storage, count, lines)?;
                    u64::from(count.bytes()) + items * u64::from(item.bytes())
                }
            };
            skip_bytes(lines, bytes)?;
        }
    }
    Ok(())
}

fn skip_bytes(lines: &mut Lines<'_>, bytes: u64) -> Result<(), FormatError> {
    if bytes > lines.rest().len() as u64 {
        return Err(truncated("elements before the vertices", bytes, lines.byte(), lines.rest()));
    }
    lines.skip(bytes as usize);
    Ok(())
}

/// The number of items of the list at the next byte; at most 32 bits.
fn list_count(storage: Storage, count: Datatype, lines: &Lines<'_>) -> Result<u64, FormatError> {
    let bytes = count.bytes() as usize;
    let Some(stated) = lines.rest().get(..bytes) else {
        return Err(truncated("elements before the vertices", bytes as u64, lines.byte(), lines.rest()));
    };
    let mut word = [0; 8];
    word[..bytes].copy_from_slice(stated);
    if storage == Storage::BigEndian {
        word[..bytes].reverse();
    }
    let items = u64::from_le_bytes(word);
    let negative = matches!(count, Datatype::Int8 | Datatype::Int16 | Datatype::Int32) && items >> (bytes * 8 - 1) == 1;
    if negative {
        return Err(lines.byte().has(Problem::Word { found: items.to_string(), wanted: "a number of list items" }));
    }
    Ok(items)
}

/// For the fuzzer: any bytes are parsed or refused, and a parsed cloud survives saving.
pub fn fuzz_ply(data: &[u8]) -> bool {
    let Ok((meta, payload)) = parse(data) else { return false };
    assert_survives(&meta, &payload);
    true
}
