//! Files of all kinds: what is saved reads back exactly, what strangers send is refused by name, the corpora are replayed.

use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use rgaps::types::{DType, Datatype, Encoding, Image, Meta, PointCloud, PointField, Tensor};

use super::*;

/// A folder that is gone after the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("rgaps-media-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str, contents: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, contents).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/data")
}

/// Bytes that look random and are the same in every run.
fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let step = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..bytes).map(step).collect()
}

fn saved_and_loaded(folder: &Folder, media: &Media) -> Media {
    load(save(&folder.0.join("frame.0001"), media).unwrap()).unwrap()
}

#[test]
fn the_bundled_pictures_are_read_and_survive_being_saved() {
    let folder = Folder::new("pictures");
    let sizes =
        [("astronaut.png", 512, 512), ("chelsea.png", 451, 300), ("coffee.png", 600, 400), ("rocket.jpg", 640, 427)];
    for (name, width, height) in sizes {
        let media = load(examples().join(name)).unwrap();
        let Media::Image { meta, ref bytes } = media else { panic!("{name} is no picture") };
        assert_eq!((meta.width, meta.height, meta.encoding), (width, height, Encoding::Rgb8), "{name}");
        meta.check(bytes.len() as u64).unwrap();
        assert_eq!(saved_and_loaded(&folder, &media), media, "{name}");
    }
}

#[test]
fn the_bundled_cloud_and_array_are_what_their_formulas_give() {
    let (cloud, array) = (example_cloud(), example_array());
    assert_eq!(load(examples().join("saddle.pcd")).unwrap(), cloud);
    assert_eq!(load(examples().join("ramp.npy")).unwrap(), array);
}

/// The formula of examples/data/saddle.pcd: exact in 32-bit floats on every machine.
fn example_cloud() -> Media {
    let names = ["x", "y", "z", "intensity"].map(|name| (name, Datatype::Float32));
    let mut bytes = Vec::new();
    for row in 0..128_u16 {
        for column in 0..128_u16 {
            let (x, y) = (f32::from(column) / 64.0 - 1.0, f32::from(row) / 64.0 - 1.0);
            for value in [x, y, x * x - y * y, x * x + y * y] {
                bytes.extend_from_slice(&value.to_le_bytes());
            }
        }
    }
    Media::Cloud { meta: PointCloud::packed(128 * 128, &names).unwrap(), bytes }
}

/// The formula of examples/data/ramp.npy.
fn example_array() -> Media {
    let values = (0..3 * 64 * 64_u16).map(|i| f32::from(i) / 4096.0);
    let bytes = values.flat_map(f32::to_le_bytes).collect();
    Media::Tensor { meta: Tensor::new(DType::FLOAT32, &[1, 3, 64, 64]).unwrap(), bytes }
}

#[test]
fn every_encoding_is_saved_and_its_pixels_read_back() {
    let folder = Folder::new("encodings");
    for &encoding in Encoding::ALL {
        for padding in [0, 8] {
            let tight = Image::new(6, 4, encoding).unwrap();
            let meta = tight.with_step(tight.step + padding).unwrap();
            let bytes = noise(meta.payload_bytes() as usize, u64::from(encoding.code()));
            let path = save_image(&folder.0.join("picture"), &meta, &bytes).unwrap();
            let rows = bytes.chunks(meta.step as usize).map(|row| &row[..tight.step as usize]);
            let pixels = rows.collect::<Vec<_>>().concat();
            let loaded = load(&path).unwrap();
            match loaded {
                Media::Image { meta: read, bytes: read_bytes } => {
                    assert_eq!((read.width, read.height), (6, 4));
                    assert_eq!(read_bytes, red_first(encoding, pixels), "{encoding}");
                }
                // Pixels that share colours are kept as rows of bytes with their padding, others as channels without it.
                Media::Tensor { meta: read, bytes: read_bytes } => {
                    let rows_kept = read.shape().len() == 2;
                    assert_eq!(read_bytes, if rows_kept { bytes } else { pixels }, "{encoding}");
                    assert_eq!(
                        rows_kept,
                        encoding.name().contains("uv") || encoding.name().contains("uy") || encoding.planes() > 1
                    );
                }
                Media::Cloud { .. } => panic!("a picture became a cloud"),
            }
        }
    }
}

fn red_first(encoding: Encoding, mut pixels: Vec<u8>) -> Vec<u8> {
    let blue_first = matches!(
        encoding,
        Encoding::Bgr8
            | Encoding::Bgra8
            | Encoding::Bgr16
            | Encoding::Bgra16
            | Encoding::U8C3
            | Encoding::U8C4
            | Encoding::U16C3
            | Encoding::U16C4
    );
    let channel = encoding.bits_per_channel() as usize / 8;
    if blue_first {
        for pixel in pixels.chunks_exact_mut(encoding.bytes_per_pixel() as usize) {
            for byte in 0..channel {
                pixel.swap(byte, 2 * channel + byte);
            }
        }
    }
    pixels
}

#[test]
fn big_endian_pixels_and_points_are_swapped() {
    let folder = Folder::new("bigendian");
    let meta = Image::new(2, 1, Encoding::Mono16).unwrap().with_bigendian(true);
    let path = save_image(&folder.0.join("depth"), &meta, &[1, 2, 3, 4]).unwrap();
    assert_eq!(load(path).unwrap().bytes(), [2, 1, 4, 3]);
    let fields = [("x", Datatype::Float32), ("ring", Datatype::Uint16)];
    let meta = PointCloud::packed(1, &fields).unwrap().with_bigendian(true);
    let path = save_cloud(&folder.0.join("cloud"), &meta, &[1, 2, 3, 4, 5, 6]).unwrap();
    assert_eq!(load(path).unwrap().bytes(), [4, 3, 2, 1, 6, 5]);
}

#[test]
fn a_cloud_with_gaps_and_padded_rows_reads_back_without_the_rows_padding() {
    let folder = Folder::new("gaps");
    let fields =
        [PointField::new("z", 6, Datatype::Float64).unwrap(), PointField::new("id", 1, Datatype::Uint16).unwrap()];
    let meta = PointCloud::new(3, 2, 17, &fields).unwrap().with_row_step(60).unwrap();
    let bytes = noise(120, 5);
    let path = save_cloud(&folder.0.join("cloud"), &meta, &bytes).unwrap();
    let Media::Cloud { meta: read, bytes: read_bytes } = load(path).unwrap() else { panic!() };
    assert_eq!((read.width, read.height, read.point_step, read.row_step), (3, 2, 17, 51));
    assert_eq!((read.field("z"), read.field("id")), (Some(&fields[0]), Some(&fields[1])));
    assert_eq!(read_bytes, [&bytes[..51], &bytes[60..111]].concat());
}

/// An input of the fuzzer's corpus, without the byte that names its parser.
fn input(name: &str) -> Vec<u8> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/files");
    fs::read(corpus.join(name)).unwrap().split_off(1)
}

#[test]
fn ascii_binary_and_compressed_pcd_are_read_alike() {
    let [ascii, binary, compressed] =
        ["pcd-ascii", "pcd-binary", "pcd-compressed"].map(|name| pcd::parse(&input(name)).unwrap());
    assert_eq!(ascii, binary);
    assert_eq!(ascii, compressed);
    let (meta, bytes) = ascii;
    assert_eq!((meta.points(), meta.fields().len(), meta.field("rgb").unwrap().datatype), (4, 5, Datatype::Uint32));
    assert!(!meta.is_dense, "the last point is NaN");
    assert_eq!(bytes[..4], 1.5_f32.to_le_bytes());
}

#[test]
fn the_three_forms_of_ply_are_read_alike_and_faces_are_skipped() {
    let [ascii, little, big] = ["ply-ascii", "ply-little", "ply-big"].map(|name| ply::parse(&input(name)).unwrap());
    assert_eq!(ascii, little);
    assert_eq!(ascii, big);
    // 15 B in the file.
    assert_eq!((ascii.0.points(), ascii.0.point_step, ascii.0.field("red").unwrap().offset), (3, 16, 12));
    for field in ascii.0.fields() {
        ascii.0.field_tensor(field.name.as_str()).unwrap();
    }
}

#[test]
fn arrays_of_both_orders_and_endiannesses_have_the_same_elements() {
    let file = |descr: &str, order: &str, elements: &[u8]| {
        let header = format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': (2, 3), }}\n");
        [b"\x93NUMPY\x01\x00", &(header.len() as u16).to_le_bytes()[..], header.as_bytes(), elements].concat()
    };
    let (meta, bytes) = npy::parse(&file(">u2", "True", &[0, 1, 0, 4, 0, 2, 0, 5, 0, 3, 0, 6])).unwrap();
    assert_eq!((meta.shape(), meta.strides(), meta.dtype()), (&[2, 3][..], &[1, 2][..], DType::UINT16));
    assert_eq!(bytes, [1, 0, 4, 0, 2, 0, 5, 0, 3, 0, 6, 0]);
    let (meta, _) = npy::parse(&file("<c8", "False", &[0; 48])).unwrap();
    assert_eq!((meta.strides(), meta.dtype()), (&[3, 1][..], DType::COMPLEX64));
}

#[test]
fn a_mixed_folder_gives_one_kind_in_the_order_of_names() {
    let folder = Folder::new("select");
    for name in ["b.png", "a.JPG", "z.pcd", "notes.txt", "c.npy", "y.ply"] {
        folder.file(name, b"");
    }
    fs::create_dir(folder.0.join("folder.png")).unwrap();
    let names = |selection: Selection| {
        let names = selection.files.iter().map(|file| file.file_name().unwrap().to_str().unwrap().to_owned());
        (selection.kind, names.collect::<Vec<_>>(), selection.others)
    };
    assert_eq!(names(select(&folder.0, None).unwrap()), (FileKind::Image, vec!["a.JPG".into(), "b.png".into()], 3));
    let clouds = select(&folder.0, Some(FileKind::Cloud)).unwrap();
    assert_eq!(names(clouds), (FileKind::Cloud, vec!["y.ply".into(), "z.pcd".into()], 3));
    assert!(select(&folder.0.join("notes.txt"), None).unwrap_err().to_string().contains("not a kind of file"));
    assert!(select(&folder.0.join("folder.png"), None).unwrap_err().to_string().contains("no file in it ends in"));
    assert!(select(&folder.0.join("absent.png"), None).unwrap_err().to_string().contains("No such file"));
    assert_eq!(select(&examples(), None).unwrap().files.len(), 4);
}

#[test]
fn an_unreadable_picture_is_named_with_the_remedy() {
    let folder = Folder::new("unreadable");
    let png = fs::read(examples().join("chelsea.png")).unwrap();
    for (name, contents) in [("cut.png", &png[..5000]), ("text.jpg", b"not a picture"), ("empty.png", b"")] {
        let path = folder.file(name, contents);
        let text = load(&path).unwrap_err().to_string();
        assert!(text.starts_with(path.to_str().unwrap()), "{text}");
        assert!(text.contains("unreadable picture (") && text.contains("save it again as PNG or JPEG"), "{text}");
    }
    let impossible = [&png[..16], &[0x7f, 0xff, 0xff, 0xff], &png[20..]].concat();
    assert!(matches!(load(folder.file("impossible.png", &impossible)), Err(LoadError::Picture { .. })));
}

#[test]
fn damaged_clouds_and_arrays_are_refused_by_file_line_and_remedy() {
    let folder = Folder::new("damaged");
    let pcd = |changed: &str, to: &str, points: &str| {
        let header =
            "VERSION 0.7\nFIELDS x y\nSIZE 4 2\nTYPE F U\nCOUNT 1 1\nWIDTH 2\nHEIGHT 1\nPOINTS 2\nDATA ascii\n";
        let text = header.replace(changed, to) + points;
        let path = folder.file("a.pcd", text.as_bytes());
        load(&path).map(drop).map_err(|error| error.to_string().replace(&format!("{}, ", path.display()), ""))
    };
    let good = "1.5 2\n-1e3 65535\n";
    assert_eq!(pcd("", "", good), Ok(()));
    let cases = [
        ("DATA ascii", "DATA zip", good, "line 9: 'zip' is not ascii, binary or binary_compressed"),
        ("WIDTH 2\n", "", good, "line 8: the header has no WIDTH; add it or write the file again"),
        ("VERSION", "# .PCD", good, "line 9: the header has no VERSION; add it or write the file again"),
        (
            "POINTS 2",
            "POINTS 3",
            good,
            "line 9: 3 POINTS, but 2 follow from the rest of the header; correct the header",
        ),
        ("SIZE 4 2", "SIZE 4", good, "line 9: 1 sizes, but 2 follow from the rest of the header; correct the header"),
        (
            "TYPE F U",
            "TYPE F F",
            good,
            "line 9: field 'y' of TYPE F and SIZE 2 cannot be read; leave out the field, or write it as a smaller type",
        ),
        ("COUNT 1 1", "COUNT 1 0", good, "line 9: '0' is not a number of elements from 1"),
        ("WIDTH 2", "WIDTH -2", good, "line 6: '-2' is not a number of points up to 4294967295"),
        ("", "", "1.5 2\n1 65536\n", "line 11: '65536' is not a whole number from 0 to 65535"),
        ("", "", "1.5 2 3\n1 2\n", "line 10: 3 values where 2 are declared; correct the line or the header"),
        (
            "",
            "",
            "1.5 2\n\n\n",
            "line 12: 1 lines of points, but 2 follow from the rest of the header; correct the header",
        ),
        (
            "WIDTH 2",
            "WIDTH 4000000000",
            good,
            "line 9: 2 POINTS, but 4000000000 follow from the rest of the header; correct the header",
        ),
        (
            "DATA ascii",
            "DATA binary",
            "12345",
            "byte 89: the header declares 12 B of points, the file has 5 B; it was cut off or its header is wrong",
        ),
        (
            "VERSION",
            "ply",
            good,
            "line 1: this is not PCD: it should begin with '# .PCD' or 'VERSION'; rename the file after its real format",
        ),
    ];
    for (changed, to, points, wanted) in cases {
        assert_eq!(pcd(changed, to, points), Err(wanted.to_owned()));
    }
    let impossible = pcd("POINTS 2", "", "").unwrap_err();
    assert!(impossible.contains("declares 7 B of points as text, at least, the file has 0 B"), "{impossible}");
    let fields = (0..17).map(|i| format!("property float f{i}\n")).collect::<String>();
    let ply = format!("ply\nformat ascii 1.0\nelement vertex 0\n{fields}end_header\n");
    let text = load(folder.file("a.ply", ply.as_bytes())).unwrap_err().to_string();
    assert!(text.ends_with("line 21: 17 point fields; at most 16 fit"), "{text}");
    let npy = b"\x93NUMPY\x01\x00\x36\x00{'descr': '|O', 'fortran_order': False, 'shape': (1,)}\n".to_vec();
    let text = load(folder.file("a.npy", &npy)).unwrap_err().to_string();
    assert!(text.contains("a.npy, line 1: elements of type '|O' cannot be read; save a plain array"), "{text}");
}

#[test]
fn payloads_that_a_format_cannot_hold_are_refused_and_leave_no_file() {
    let folder = Folder::new("inexpressible");
    let bfloat = Tensor::new(DType::BFLOAT16, &[2]).unwrap();
    let text = save_tensor(&folder.0.join("t"), &bfloat, &[0; 4]).unwrap_err().to_string();
    assert!(
        text.ends_with("t.npy: NPY cannot hold elements of type bfloat16; publish them as a type of NumPy"),
        "{text}"
    );
    let endless = Tensor::strided(DType::UINT8, &[1 << 50], &[0], 0).unwrap();
    assert!(matches!(save_tensor(&folder.0.join("t"), &endless, &[0]), Err(SaveError::Inexpressible { .. })));
    let fields = [0, 2].map(|offset| PointField::new("x", offset, Datatype::Float32).unwrap());
    let union = PointCloud::new(1, 1, 6, &fields).unwrap();
    let text = save_cloud(&folder.0.join("c"), &union, &[0; 6]).unwrap_err().to_string();
    assert!(text.contains("c.pcd: PCD cannot hold field 'x', which overlaps another"), "{text}");
    let short = save_image(&folder.0.join("i"), &Image::new(2, 2, Encoding::Mono8).unwrap(), &[0; 3]).unwrap_err();
    assert!(matches!(short, SaveError::Metadata { .. }));
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 0);
    assert!(matches!(save(Path::new("/nonexistent/a"), &example_array()), Err(SaveError::Write { .. })));
}

/// Real data that may not be copied into the project; the variable names the folder that holds it.
#[test]
fn a_real_cloud_of_stereo_vision_survives() {
    let Some(folder) = std::env::var_os("RGAPS_TEST_DATA") else {
        println!("skipped: RGAPS_TEST_DATA names no folder with clouds/motorcycle.pcd");
        return;
    };
    let Media::Cloud { meta, bytes } = load(Path::new(&folder).join("clouds/motorcycle.pcd")).unwrap() else {
        panic!()
    };
    assert_eq!((meta.points(), meta.point_step, meta.fields().len()), (343_274, 16, 4));
    pcd::assert_survives(&meta, &bytes);
}

fn any_cloud() -> impl Strategy<Value = (PointCloud, Vec<u8>)> {
    let field = (0..3_u32, 0..8_usize, 1..4_u32);
    (proptest::collection::vec(field, 1..=16), 0..9_u32, 0..4_u32, 0..5_u32, any::<u64>()).prop_map(
        |(fields, width, height, tail, seed)| {
            let mut end = 0;
            let place = |(i, (gap, datatype, count)): (usize, (u32, usize, u32))| {
                let field =
                    PointField::new(&format!("f{i}"), end + gap, Datatype::ALL[datatype]).unwrap().with_count(count);
                end = field.end() as u32;
                field
            };
            let fields: Vec<_> = fields.into_iter().enumerate().map(place).collect();
            let meta = PointCloud::new(width, height, end + tail, &fields).unwrap();
            (meta, noise(meta.payload_bytes() as usize, seed))
        },
    )
}

fn any_tensor() -> impl Strategy<Value = (Tensor, Vec<u8>)> {
    let dtypes = [DType::BOOL, DType::INT16, DType::UINT64, DType::FLOAT16, DType::FLOAT32, DType::COMPLEX128];
    let dimension = (0..4_i64, any::<bool>());
    (0..dtypes.len(), proptest::collection::vec(dimension, 0..=5), 0..3_u64, any::<u64>()).prop_map(
        move |(dtype, dimensions, gap, seed)| {
            // C order, with some dimensions walked backwards and a gap in front.
            let dtype = dtypes[dtype];
            let shape: Vec<i64> = dimensions.iter().map(|&(elements, _)| elements).collect();
            let mut strides = Tensor::new(dtype, &shape).unwrap().strides().to_vec();
            let mut first = gap as i64;
            for ((&elements, stride), &(_, backwards)) in shape.iter().zip(&mut strides).zip(&dimensions) {
                if backwards && elements > 0 {
                    first += (elements - 1) * *stride;
                    *stride = -*stride;
                }
            }
            let meta = Tensor::strided(dtype, &shape, &strides, first as u64 * dtype.bytes()).unwrap();
            (meta, noise(meta.payload_bytes() as usize, seed))
        },
    )
}

/// Element by element, by the definition of strides.
fn elements_in_c_order(meta: &Tensor, payload: &[u8]) -> Vec<u8> {
    let mut offsets = vec![0_i64];
    for (&elements, &stride) in meta.shape().iter().zip(meta.strides()) {
        offsets = offsets.iter().flat_map(|offset| (0..elements).map(move |i| offset + i * stride)).collect();
    }
    let size = meta.dtype().bytes() as i64;
    let at = |offset: i64| (meta.byte_offset() as i64 + offset * size) as usize;
    offsets.iter().flat_map(|&offset| payload[at(offset)..][..size as usize].to_vec()).collect()
}

proptest! {
    #[test]
    fn any_cloud_reads_back_exactly((meta, bytes) in any_cloud()) {
        pcd::assert_survives(&meta.with_dense(pcd::coordinates_are_finite(&meta, &bytes)), &bytes);
    }

    #[test]
    fn any_tensor_reads_back_element_by_element((meta, bytes) in any_tensor()) {
        let mut file = Vec::new();
        prop_assert!(npy::encode(&meta, &bytes, &mut file).is_ok());
        let (read, read_bytes) = npy::parse(&file).unwrap();
        prop_assert_eq!(read.shape(), meta.shape());
        prop_assert_eq!(read.dtype(), meta.dtype());
        prop_assert_eq!(elements_in_c_order(&read, &read_bytes), elements_in_c_order(&meta, &bytes));
        prop_assert_eq!(file.len() % 64, (read_bytes.len()) % 64);
    }

    #[test]
    fn any_picture_reads_back_exactly(
        width in 1..40_u32,
        height in 1..40_u32,
        which in 0..6_usize,
        padding in 0..9_u32,
        seed in any::<u64>(),
    ) {
        let encodings =
            [Encoding::Mono8, Encoding::Rgb8, Encoding::Rgba8, Encoding::Mono16, Encoding::Rgb16, Encoding::Rgba16];
        let tight = Image::new(width, height, encodings[which]).unwrap();
        let meta = tight.with_step(tight.step + padding).unwrap();
        let bytes = noise(meta.payload_bytes() as usize, seed);
        let mut file = Vec::new();
        prop_assert!(picture::encode(&meta, &bytes, &mut file).unwrap());
        let pixels: Vec<&[u8]> = bytes.chunks(meta.step as usize).map(|row| &row[..tight.step as usize]).collect();
        prop_assert_eq!(picture::decode(&file).unwrap(), (tight, pixels.concat()));
    }

    #[test]
    fn no_bytes_after_a_good_start_make_a_parser_panic(tail in proptest::collection::vec(any::<u8>(), 0..300)) {
        pcd::fuzz_pcd(&[b"VERSION 0.7\nFIELDS x\nSIZE 4\nTYPE F\nWIDTH 9\nHEIGHT 1\nDATA binary_compressed\n", &tail[..]].concat());
        ply::fuzz_ply(&[b"ply\nformat binary_big_endian 1.0\nelement a 9\nproperty list char int b\nelement vertex 3\nproperty double x\nend_header\n", &tail[..]].concat());
        npy::fuzz_npy(&[b"\x93NUMPY\x01\x00", &tail[..]].concat());
    }
}
