//! Metadata of point clouds, and its relation to numpy's structured types.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyMapping};
use rgaps::types::{self, Datatype};

use super::{dtype_of, metadata, with_header};
use crate::source::Source;
use crate::{errors, layout};

/// One field of a point: `datatype` is a name from int8 to float64, `offset` its first byte in the point, `count` its number of elements.
///
/// >>> rgaps.PointField("intensity", 12, "float32").datatype
/// 'float32'
#[pyclass(frozen, eq, hash, module = "rgaps")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PointField(pub(crate) types::PointField);

#[pymethods]
impl PointField {
    #[new]
    #[pyo3(signature = (name, offset, datatype, count = 1))]
    fn new(name: &str, offset: u32, datatype: &Bound<'_, PyAny>, count: u32) -> PyResult<Self> {
        let field = types::PointField::new(name, offset, datatype_of(datatype)?);
        Ok(Self(field.map_err(|error| errors::of_meta(&error))?.with_count(count)))
    }

    /// Its name, such as x or intensity.
    #[getter]
    fn name(&self) -> String {
        self.0.name.as_str().to_owned()
    }

    /// Offset of its first byte in a point.
    #[getter]
    fn offset(&self) -> u32 {
        self.0.offset
    }

    /// Name of its element type.
    #[getter]
    fn datatype(&self) -> &'static str {
        self.0.datatype.name()
    }

    /// Number of its elements, usually 1.
    #[getter]
    fn count(&self) -> u32 {
        self.0.count
    }

    fn __repr__(&self) -> String {
        let types::PointField { name, offset, datatype, count } = self.0;
        let count = if count == 1 { String::new() } else { format!(", {count}") };
        format!("rgaps.PointField('{}', {offset}, '{datatype}'{count})", name.as_str())
    }
}

/// A point cloud, as in sensor_msgs/PointCloud2: width x height points of `point_step` bytes.
///
/// `row_step` is the step from row to row in bytes; by default rows have no gaps. `PointCloud.packed` and `PointCloud.like` are shorter ways to
/// make one.
///
/// >>> cloud = rgaps.PointCloud.packed(1000, [("x", "float32"), ("y", "float32"), ("z", "float32")])
/// >>> cloud.points, cloud.point_step, cloud.nbytes
/// (1000, 12, 12000)
#[pyclass(frozen, eq, hash, module = "rgaps")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PointCloud(pub(crate) types::PointCloud);

metadata!(PointCloud {
    #[new]
    #[pyo3(signature = (width, height, point_step, fields, *, row_step = None, is_bigendian = false, is_dense = true, stamp = None, frame_id = None, user = None))]
    #[allow(clippy::too_many_arguments)] // Keywords, in Python.
    fn new(
        width: u32,
        height: u32,
        point_step: u32,
        fields: Vec<Bound<'_, PointField>>,
        row_step: Option<u32>,
        is_bigendian: bool,
        is_dense: bool,
        stamp: Option<u64>,
        frame_id: Option<&str>,
        user: Option<&[u8]>,
    ) -> PyResult<Self> {
        let fields: Vec<types::PointField> = fields.iter().map(|field| field.get().0).collect();
        let made = types::PointCloud::new(width, height, point_step, &fields).and_then(|cloud| match row_step {
            Some(row_step) => cloud.with_row_step(row_step),
            None => Ok(cloud),
        });
        let cloud = made.map_err(|error| errors::of_meta(&error))?;
        with_header(cloud.with_bigendian(is_bigendian).with_dense(is_dense), stamp, frame_id, user).map(Self)
    }

    /// An unordered cloud whose fields, such as `{"x": "float32", "y": "float32"}`, follow each other without gaps. A field can be viewed only if its
    /// offset and the point's size are multiples of its element's size: with fields of different sizes, pass a dtype with gaps to `from_dtype`.
    ///
    /// >>> cloud = rgaps.PointCloud.packed(1000, {"x": "float32", "y": "float32"})
    /// >>> [(field.name, field.offset) for field in cloud.fields]
    /// [('x', 0), ('y', 4)]
    #[staticmethod]
    #[pyo3(signature = (points, fields, *, is_dense = true, stamp = None, frame_id = None, user = None))]
    fn packed(
        points: u32,
        fields: &Bound<'_, PyAny>,
        is_dense: bool,
        stamp: Option<u64>,
        frame_id: Option<&str>,
        user: Option<&[u8]>,
    ) -> PyResult<Self> {
        let pairs = match fields.cast::<PyMapping>() {
            Ok(mapping) => mapping.items()?.into_any(),
            Err(_) => fields.clone(),
        };
        let mut named = Vec::new();
        for pair in pairs.try_iter()? {
            let (name, datatype): (String, Bound<'_, PyAny>) = pair?.extract()?;
            named.push((name, datatype_of(&datatype)?));
        }
        let borrowed: Vec<(&str, Datatype)> = named.iter().map(|(name, datatype)| (name.as_str(), *datatype)).collect();
        let cloud = types::PointCloud::packed(points, &borrowed).map_err(|error| errors::of_meta(&error))?;
        with_header(cloud.with_dense(is_dense), stamp, frame_id, user).map(Self)
    }

    /// A cloud of width x height points of a numpy structured dtype, with its offsets.
    ///
    /// >>> point = np.dtype([("x", "f4"), ("y", "f4"), ("z", "f4"), ("ring", "u2")], align=True)
    /// >>> cloud = rgaps.PointCloud.from_dtype(point, 1024, 64)
    /// >>> cloud.point_step, cloud.points
    /// (16, 65536)
    #[staticmethod]
    #[pyo3(signature = (dtype, width, height = 1, *, is_dense = true, stamp = None, frame_id = None, user = None))]
    fn from_dtype(
        dtype: &Bound<'_, PyAny>,
        width: u32,
        height: u32,
        is_dense: bool,
        stamp: Option<u64>,
        frame_id: Option<&str>,
        user: Option<&[u8]>,
    ) -> PyResult<Self> {
        let dtype = dtype.py().import("numpy")?.call_method1("dtype", (dtype,))?;
        let cloud = of_structured(&dtype, width, height)?;
        with_header(cloud.with_dense(is_dense), stamp, frame_id, user).map(Self)
    }

    /// Metadata for the points of an array: of a structured dtype, or float32 of points x 3 (x, y, z) or x 4 (and intensity).
    ///
    /// >>> [field.name for field in rgaps.PointCloud.like(np.zeros((1000, 4), np.float32)).fields]
    /// ['x', 'y', 'z', 'intensity']
    #[staticmethod]
    #[pyo3(signature = (array, *, is_dense = true, stamp = None, frame_id = None, user = None))]
    fn like(
        array: &Bound<'_, PyAny>,
        is_dense: bool,
        stamp: Option<u64>,
        frame_id: Option<&str>,
        user: Option<&[u8]>,
    ) -> PyResult<Self> {
        let cloud = layout::cloud_like(array, &Source::shape_of(array)?)?;
        with_header(cloud.with_dense(is_dense), stamp, frame_id, user).map(Self)
    }

    /// Points in a row.
    #[getter]
    fn width(&self) -> u32 {
        self.0.width
    }

    /// Number of rows; 1 for an unordered cloud.
    #[getter]
    fn height(&self) -> u32 {
        self.0.height
    }

    /// Number of points.
    #[getter]
    fn points(&self) -> u64 {
        self.0.points()
    }

    /// Step from point to point in bytes.
    #[getter]
    fn point_step(&self) -> u32 {
        self.0.point_step
    }

    /// Step from row to row in bytes.
    #[getter]
    fn row_step(&self) -> u32 {
        self.0.row_step
    }

    /// Whether elements are big-endian.
    #[getter]
    fn is_bigendian(&self) -> bool {
        self.0.is_bigendian
    }

    /// Whether every point is valid: none has NaN or infinite coordinates.
    #[getter]
    fn is_dense(&self) -> bool {
        self.0.is_dense
    }

    /// The fields of a point.
    #[getter]
    fn fields(&self) -> Vec<PointField> {
        self.0.fields().iter().map(|field| PointField(*field)).collect()
    }

    /// The type of a point for `np.dtype(cloud.dtype)`: a dict of names, formats, offsets and itemsize.
    ///
    /// >>> cloud = rgaps.PointCloud.packed(1000, {"x": "float32", "y": "float32"})
    /// >>> np.zeros(cloud.points, np.dtype(cloud.dtype))["y"].strides
    /// (8,)
    #[getter]
    fn dtype<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        structured(py, &self.0)
    }

    fn __repr__(&self) -> String {
        let names: Vec<&str> = self.0.fields().iter().map(|field| field.name.as_str()).collect();
        format!("rgaps.PointCloud({} x {}, {})", self.0.width, self.0.height, names.join(" "))
    }
});

/// The element type of a field, by its name.
fn datatype_of(object: &Bound<'_, PyAny>) -> PyResult<Datatype> {
    let dtype = dtype_of(object)?;
    let found = Datatype::ALL.into_iter().find(|datatype| datatype.dtype() == dtype);
    found.ok_or_else(|| {
        PyTypeError::new_err(format!(
            "a field of a cloud cannot be {dtype}: use int8 to int32, uint8 to uint32, float32 or float64"
        ))
    })
}

/// numpy's structured dtype for a point.
pub(crate) fn structured<'py>(py: Python<'py>, cloud: &types::PointCloud) -> PyResult<Bound<'py, PyDict>> {
    let (mut names, mut formats, mut offsets) = (Vec::new(), Vec::new(), Vec::new());
    for field in cloud.fields() {
        let order = if cloud.is_bigendian { '>' } else { '<' };
        let (letter, bytes) = (field.datatype.name().chars().next().unwrap_or('u'), field.datatype.bytes());
        let count = if field.count == 1 { String::new() } else { format!("({},)", field.count) };
        names.push(field.name.as_str().to_owned());
        formats.push(format!("{count}{order}{letter}{bytes}"));
        offsets.push(field.offset);
    }
    let dtype = PyDict::new(py);
    dtype.set_item("names", names)?;
    dtype.set_item("formats", formats)?;
    dtype.set_item("offsets", offsets)?;
    dtype.set_item("itemsize", cloud.point_step)?;
    Ok(dtype)
}

/// The cloud that a numpy structured dtype describes.
pub(crate) fn of_structured(dtype: &Bound<'_, PyAny>, width: u32, height: u32) -> PyResult<types::PointCloud> {
    let names: Option<Vec<String>> = dtype.getattr("names")?.extract()?;
    let Some(names) = names else {
        return Err(PyTypeError::new_err(format!("{dtype} has no fields; a cloud needs a structured dtype")));
    };
    let (all, mut fields, mut orders) = (dtype.getattr("fields")?, Vec::new(), Vec::new());
    for name in names {
        let found = all.get_item(&name)?;
        let (element, offset) = (found.get_item(0)?, found.get_item(1)?.extract()?);
        let base = element.getattr("base")?;
        let count = element.getattr("shape")?.extract::<Vec<u32>>()?.into_iter().product();
        if base.getattr("itemsize")?.extract::<u32>()? > 1 {
            orders.push(base.getattr("byteorder")?.extract::<String>()? == ">");
        }
        let field = types::PointField::new(&name, offset, datatype_of(&base)?);
        fields.push(field.map_err(|error| errors::of_meta(&error))?.with_count(count));
    }
    if orders.windows(2).any(|pair| pair[0] != pair[1]) {
        return Err(PyTypeError::new_err(
            "the fields have different byte orders: convert some of them with dtype.newbyteorder",
        ));
    }
    let point_step = dtype.getattr("itemsize")?.extract()?;
    let cloud = types::PointCloud::new(width, height, point_step, &fields).map_err(|error| errors::of_meta(&error))?;
    Ok(cloud.with_bigendian(orders.first().copied().unwrap_or(false)))
}
