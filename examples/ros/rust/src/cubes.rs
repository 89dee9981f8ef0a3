//! The positions of a cloud's points, and the cubes of a grid that contain them.

use rgaps::types::{Datatype, PointCloud};

/// The bytes of each point, and its x, y and z in metres; `None` if the cloud does not have them as float32, or one is NaN.
pub fn points<'a>(
    meta: &'a PointCloud,
    bytes: &'a [u8],
) -> impl Iterator<Item = (&'a [u8], Option<[f32; 3]>)> + use<'a> {
    let offset = |name| {
        let field = meta.field(name).filter(|field| field.datatype == Datatype::Float32);
        field.map(|field| field.offset as usize)
    };
    let offsets = [offset("x"), offset("y"), offset("z")];
    let (width, step) = (meta.width as usize, meta.point_step as usize);
    let rows = bytes.chunks(meta.row_step as usize).take(meta.height as usize);
    rows.flat_map(move |row| row.chunks_exact(step).take(width)).map(move |point| (point, place(point, offsets)))
}

fn place(point: &[u8], offsets: [Option<usize>; 3]) -> Option<[f32; 3]> {
    let mut place = [0.0; 3];
    for (to, offset) in place.iter_mut().zip(offsets) {
        let bytes = point.get(offset?..)?.first_chunk()?;
        *to = f32::from_le_bytes(*bytes);
    }
    place.iter().all(|metres| metres.is_finite()).then_some(place)
}

/// The cube with this edge length that contains a point.
pub fn cube(place: [f32; 3], edge: f64) -> [i64; 3] {
    place.map(|metres| (f64::from(metres) / edge).floor() as i64)
}
