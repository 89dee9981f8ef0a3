//! Views and DLPack tensors: they stay inside their payload, give the address of each element, and hold a sample for as long as an array
//! library has its tensor.

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use rgaps::device::TensorView;
use rgaps::dlpack::{DLDevice, DLManagedTensorVersioned, DeviceRange, UnmanagedTensor};
use rgaps::types::{Bytes, DType, Datatype, Encoding, Image, Meta, Payload, PointCloud, PointField, Tensor, ViewError};
use rgaps::{Node, PublishError, Publisher, Subscriber, TakeError};
use rgaps_standin_cuda::{Control, link_into};
use rgaps_testing::{RuntimeDir, Watchdog, again_with, programs};

const LONG: Duration = Duration::from_secs(60);
/// Made-up addresses of payloads, which no test accesses.
const ADDRESS: u64 = 0x7f00_0000_0000;

fn range(bytes: u64) -> DeviceRange {
    DeviceRange { address: ADDRESS, bytes, device: DLDevice::cuda(1), is_read_only: true }
}

/// The first byte of the lowest element and the byte after the highest, from the start of the payload.
fn extent(view: &TensorView) -> Option<(i128, i128)> {
    if view.shape().contains(&0) {
        return None;
    }
    let reach = |(&extent, &stride): (&i64, &i64)| (i128::from(extent) - 1) * i128::from(stride);
    let reaches: Vec<i128> = view.shape().iter().zip(view.strides()).map(reach).collect();
    let of = |end: fn(&i128) -> bool| reaches.iter().copied().filter(end).sum::<i128>();
    let (first, bytes) = (i128::from(view.data) - i128::from(ADDRESS), i128::from(view.dtype.bytes()));
    Some((first + of(|reach| *reach < 0) * bytes, first + (of(|reach| *reach > 0) + 1) * bytes))
}

/// Checks that a tensor is inside the payload and valid for DLPack.
fn stays_inside(tensor: &UnmanagedTensor, payload: u64) -> Result<(), TestCaseError> {
    let view = tensor.view();
    prop_assert_eq!(view.shape(), tensor.shape());
    prop_assert_eq!(view.data, ADDRESS + tensor.byte_offset());
    if let Some((lowest, end)) = extent(&view) {
        prop_assert!(lowest >= 0 && end <= i128::from(payload), "{}..{} of {} B", lowest, end, payload);
    }
    let first: Vec<i64> = vec![0; view.shape().len()];
    let last: Vec<i64> = view.shape().iter().map(|extent| extent - 1).collect();
    if !view.shape().contains(&0) {
        prop_assert_eq!(view.element(&first), Some(view.data));
        prop_assert!(view.element(&last).is_some());
    }
    prop_assert_eq!(view.element(view.shape()), (view.ndim == 0).then_some(view.data));
    Ok(())
}

fn images() -> impl Strategy<Value = Image> {
    let encoding = (0..Encoding::ALL.len()).prop_map(|index| Encoding::ALL[index]);
    (encoding, 1..40_u32, 1..40_u32, 0..20_u32, any::<bool>()).prop_map(
        |(encoding, width, height, gap, is_bigendian)| {
            let image = Image::new(width * 2, height * 2, encoding).unwrap();
            image.with_step(image.step + gap).unwrap().with_bigendian(is_bigendian)
        },
    )
}

fn clouds() -> impl Strategy<Value = PointCloud> {
    let field = (0..24_u32, 0..8_usize, 1..4_u32);
    let fields = proptest::collection::vec(field, 0..6);
    (fields, 0..40_u32, 0..5_u32, 0..20_u32, any::<bool>()).prop_map(|(fields, width, height, gap, is_bigendian)| {
        let name = |index: usize| format!("f{index}");
        let fields = fields.iter().enumerate().map(|(index, &(offset, datatype, count))| {
            PointField::new(&name(index), offset, Datatype::ALL[datatype]).unwrap().with_count(count)
        });
        let fields: Vec<PointField> = fields.collect();
        let end = fields.iter().map(|field| field.end() as u32).max().unwrap_or(0);
        let cloud = PointCloud::new(width, height, end.next_multiple_of(4), &fields).unwrap();
        cloud.with_row_step(cloud.row_step + gap).unwrap().with_bigendian(is_bigendian)
    })
}

fn tensors() -> impl Strategy<Value = Tensor> {
    let dtypes = [DType::UINT8, DType::FLOAT16, DType::FLOAT32, DType::COMPLEX64, DType { lanes: 3, ..DType::INT16 }];
    let dimension = (0..6_i64, -40..40_i64);
    (0..dtypes.len(), proptest::collection::vec(dimension, 0..5), 0..4000_u64).prop_filter_map(
        "its strides lead before the payload",
        move |(dtype, dimensions, offset)| {
            let (shape, strides): (Vec<i64>, Vec<i64>) = dimensions.into_iter().unzip();
            Tensor::strided(dtypes[dtype], &shape, &strides, offset).ok()
        },
    )
}

proptest! {
    #[test]
    fn an_image_never_reaches_outside_its_payload(image in images()) {
        let payload = image.payload_bytes();
        let step_is_whole = u64::from(image.step) % image.encoding.channel_type().bytes() == 0;
        let is_foreign = image.is_bigendian && image.encoding.bits_per_channel() > 8;
        let described = image.describe(&range(payload));
        prop_assert_eq!(described.is_ok(), step_is_whole && !is_foreign, "{:?}", described);
        let Ok(described) = described else { return Ok(()) };
        stays_inside(&described, payload)?;
        let (view, tensor) = (image.view(&range(payload)).unwrap(), described.view());
        let pixel_bytes = u64::from(image.encoding.bytes_per_pixel());
        for (x, y) in [(0, 0), (image.width - 1, 0), (0, image.height - 1), (image.width - 1, image.height - 1)] {
            let address = ADDRESS + u64::from(y) * u64::from(image.step) + u64::from(x) * pixel_bytes;
            prop_assert_eq!(view.pixel(x, y), Some(address));
            prop_assert!(address + pixel_bytes <= ADDRESS + payload);
            let place = [i64::from(y), i64::from(x), 0];
            prop_assert_eq!(tensor.element(&place[..tensor.ndim as usize]), Some(address));
        }
        prop_assert_eq!(view.pixel(image.width, 0), None);
        prop_assert_eq!(view.pixel(0, image.height), None);
        prop_assert!(image.describe(&range(payload - 1)).is_err());
    }

    #[test]
    fn a_cloud_and_its_fields_never_reach_outside_their_payload(cloud in clouds()) {
        let (payload, range) = (cloud.payload_bytes(), range(cloud.payload_bytes()));
        stays_inside(&cloud.describe(&range).unwrap(), payload)?;
        let view = cloud.view(&range).unwrap();
        let width = u64::from(cloud.width);
        let place = |point: u64| {
            let (row, column) = (point / width, point % width);
            ADDRESS + row * u64::from(cloud.row_step) + column * u64::from(cloud.point_step)
        };
        for point in 0..cloud.points() {
            prop_assert_eq!(view.point(point), Some(place(point)));
        }
        prop_assert_eq!(view.point(cloud.points()), None);
        for field in cloud.fields() {
            let name = field.name.as_str();
            let element = field.datatype.bytes();
            let has_gaps = cloud.height > 1 && cloud.row_step > cloud.width * cloud.point_step;
            let is_whole = (field.offset % element, cloud.point_step % element) == (0, 0);
            let is_whole = is_whole && !(has_gaps && cloud.row_step % element != 0);
            let described = cloud.describe_field(name, &range);
            prop_assert_eq!(described.is_ok(), is_whole && !(cloud.is_bigendian && element > 1), "{:?}", described);
            let Ok(described) = described else { continue };
            stays_inside(&described, payload)?;
            let (view, tensor) = (cloud.field_view(name, &range).unwrap(), described.view());
            prop_assert_eq!(tensor.shape().len(), 1 + usize::from(has_gaps) + usize::from(field.count > 1));
            for point in 0..cloud.points() {
                prop_assert_eq!(view.point(point), Some(place(point) + u64::from(field.offset)));
                let rows = [(point / width) as i64, (point % width) as i64, 0];
                let flat = [point as i64, 0];
                let index = if has_gaps { &rows[..] } else { &flat[..] };
                prop_assert_eq!(tensor.element(&index[..tensor.ndim as usize]), view.point(point));
            }
        }
    }

    #[test]
    fn a_tensor_never_reaches_outside_its_payload(tensor in tensors()) {
        let payload = tensor.payload_bytes();
        let described = tensor.describe(&range(payload));
        let is_aligned = tensor.elements() == 0 || tensor.byte_offset() % match tensor.dtype() {
            DType::UINT8 => 1,
            DType::FLOAT32 | DType::COMPLEX64 => 4,
            _ => 2,
        } == 0;
        prop_assert_eq!(described.is_ok(), is_aligned, "{:?}", described);
        let Ok(described) = described else { return Ok(()) };
        stays_inside(&described, payload)?;
        prop_assert_eq!((described.shape(), described.strides()), (tensor.shape(), tensor.strides()));
        prop_assert!(payload == 0 || tensor.describe(&range(payload - 1)).is_err());
    }
}

#[test]
fn each_type_has_the_shape_that_an_array_library_expects() {
    let of = |tensor: Tensor| (tensor.dtype().to_string(), tensor.shape().to_vec(), tensor.strides().to_vec());
    let image = |encoding| of(Image::new(640, 480, encoding).unwrap().tensor().unwrap());
    assert_eq!(image(Encoding::Rgb8), ("uint8".into(), vec![480, 640, 3], vec![1920, 3, 1]));
    assert_eq!(image(Encoding::Mono16), ("uint16".into(), vec![480, 640], vec![640, 1]));
    assert_eq!(image(Encoding::F32C2), ("float32".into(), vec![480, 640, 2], vec![1280, 2, 1]));
    assert_eq!(image(Encoding::Nv12), ("uint8".into(), vec![720, 640], vec![640, 1]));
    let fields = [("x", Datatype::Float32), ("y", Datatype::Float32), ("z", Datatype::Float32)];
    let cloud = PointCloud::packed(1000, &fields).unwrap();
    assert_eq!(of(cloud.tensor().unwrap()), ("uint8".into(), vec![1000, 12], vec![12, 1]));
    assert_eq!(of(cloud.field_tensor("y").unwrap()), ("float32".into(), vec![1000], vec![3]));
    assert_eq!(cloud.field_tensor("y").unwrap().byte_offset(), 4);
    assert_eq!(of(Bytes::new(9).tensor().unwrap()), ("uint8".into(), vec![9], vec![1]));
    let named = Image::new(2, 2, Encoding::Mono8).unwrap().in_frame("camera").unwrap();
    assert_eq!(named.tensor().unwrap().header, named.header);
}

#[test]
fn a_payload_that_no_tensor_can_describe_is_refused_with_numbers() {
    let image = Image::new(4, 4, Encoding::Mono16).unwrap().with_step(9).unwrap();
    let error = image.describe(&range(36)).unwrap_err().to_string();
    assert!(error.starts_with("the step of 9 B is not a multiple of the element's 2 B; align it"), "{error}");
    let fields = [("x", Datatype::Float32), ("ring", Datatype::Uint16)];
    let cloud = PointCloud::packed(10, &fields).unwrap();
    let error = cloud.field_tensor("x").unwrap_err().to_string();
    assert!(error.starts_with("the point step of 6 B is not a multiple of the element's 4 B"), "{error}");
    let error = cloud.field_tensor("time").unwrap_err().to_string();
    assert_eq!(error, "the cloud has no field 'time'; it has: x, ring");
    assert_eq!(cloud.with_bigendian(true).field_tensor("ring"), Err(ViewError::ByteOrder { what: "cloud" }));
    let inconsistent = Tensor::strided(DType::FLOAT32, &[2], &[1], 6).unwrap();
    let error = inconsistent.describe(&range(14)).unwrap_err().to_string();
    assert!(error.starts_with("the byte offset of 6 B is not a multiple of the element's 4 B"), "{error}");
    let lies = DeviceRange { address: u64::MAX, ..range(60) };
    assert!(matches!(cloud.describe(&lies), Err(ViewError::OutOfBounds { needed: 60, .. })));
}

struct Bench {
    images: Publisher<Image>,
    taken: Subscriber<Image>,
    node: Node,
    // Last: dropping it ends the manager.
    _dir: RuntimeDir,
    _watchdog: Watchdog,
}

impl Bench {
    fn new() -> Self {
        let _watchdog = Watchdog::new(Duration::from_secs(120));
        let _dir = RuntimeDir::new("views").unwrap();
        let node = Node::builder().runtime_dir(_dir.path()).build().unwrap();
        Self {
            images: node.publisher("views/image").unwrap(),
            taken: node.subscriber("views/image").unwrap(),
            node,
            _dir,
            _watchdog,
        }
    }
}

/// Deletes a tensor like an array library.
fn delete(raw: *mut DLManagedTensorVersioned) {
    // SAFETY: this caller owns the tensor, and deletes it once.
    let deleter = unsafe { (*raw).deleter };
    // SAFETY: as above.
    unsafe { deleter.unwrap()(raw) };
}

/// Runs on the machine's device.
fn a_sample_is_kept_until_its_tensor_is_deleted(device: DLDevice) {
    let bench = Bench::new();
    let image = Image::new(64, 32, Encoding::Rgb8).unwrap();
    let loan = bench.images.loan(image).unwrap();
    let (view, described) = (loan.view().unwrap(), loan.describe().unwrap());
    assert_eq!((view.width, view.height, view.step, view.channels), (64, 32, 192, 3));
    assert_eq!((view.data, described.data()), (loan.device_address().unwrap(), loan.device_address().unwrap()));
    assert_eq!((described.device(), described.is_read_only()), (device, false));
    assert_eq!(described.manage(()).as_raw().flags, 0, "a loan is there to be written");
    loan.publish().unwrap();

    let sample = bench.taken.wait(LONG).unwrap().unwrap();
    let (address, held) = (sample.device_address().unwrap(), || bench.taken.statistics().held);
    assert_eq!(sample.view().unwrap().data, address);
    let tensor = sample.into_dlpack().unwrap();
    let raw = tensor.as_raw();
    assert_eq!((raw.flags, raw.dl_tensor.device, raw.dl_tensor.data as u64), (1, device, address));
    assert_eq!((raw.dl_tensor.ndim, held()), (3, 1), "a sample is read only, and held");
    drop(tensor);
    assert_eq!(held(), 0, "not given away: dropped");

    // A library's own thread deletes it.
    bench.images.loan(image).unwrap().publish().unwrap();
    let raw = bench.taken.wait(LONG).unwrap().unwrap().into_dlpack().unwrap().into_raw().as_ptr() as usize;
    assert_eq!(held(), 1);
    std::thread::spawn(move || delete(raw as *mut _)).join().unwrap();
    assert_eq!(held(), 0);

    // The subscriber may be dropped first.
    let clouds = bench.node.publisher::<PointCloud>("views/cloud").unwrap();
    let taken = bench.node.subscriber::<PointCloud>("views/cloud").unwrap();
    let cloud = PointCloud::packed(100, &[("x", Datatype::Float32), ("id", Datatype::Uint32)]).unwrap();
    let loan = clouds.loan(cloud).unwrap();
    assert_eq!(loan.field_view("id").unwrap().data, loan.device_address().unwrap() + 4);
    assert!(matches!(loan.describe_field("y"), Err(PublishError::View { .. })));
    loan.publish().unwrap();
    let sample = taken.wait(LONG).unwrap().unwrap();
    assert!(matches!(sample.field_view("y"), Err(TakeError::View { sequence: 1, .. })));
    let sample = Arc::new(sample);
    let tensors = ["x", "id"].map(|name| sample.describe_field(name).unwrap().manage(sample.clone()));
    let weak = Arc::downgrade(&sample);
    drop(sample);
    drop(taken);
    for tensor in tensors {
        assert!(weak.upgrade().is_some(), "each field keeps the cloud");
        assert_eq!((tensor.as_raw().flags, tensor.as_raw().dl_tensor.ndim), (1, 1));
    }
    assert!(weak.upgrade().is_none());

    // An empty payload has no address.
    let empty = clouds.loan(PointCloud::packed(0, &[("x", Datatype::Float32)]).unwrap()).unwrap();
    assert_eq!(empty.describe().unwrap().shape(), [0, 4]);
    assert!(empty.describe().unwrap().manage(()).as_raw().dl_tensor.data.is_null());
}

#[test]
fn a_sample_on_the_host_is_kept_until_its_tensor_is_deleted() {
    let settings = [("RGAPSD", programs::find("rgapsd")), ("RGAPS_DEVICE", "host".into())];
    let settings = settings.each_ref().map(|(name, value)| (*name, value.to_str().unwrap()));
    if again_with(&settings, |_| Ok(())) {
        a_sample_is_kept_until_its_tensor_is_deleted(DLDevice::CPU);
    }
}

#[test]
fn a_sample_on_a_gpu_is_kept_until_its_tensor_is_deleted() {
    let rgapsd = programs::find("rgapsd");
    let settings = [("RGAPSD", rgapsd.to_str().unwrap()), ("RGAPS_DEVICE", "cuda:0")];
    if again_with(&settings, link_into) {
        Control::load();
        a_sample_is_kept_until_its_tensor_is_deleted(DLDevice::cuda(0));
    }
}

#[test]
fn a_tensor_in_stream_order_is_released_behind_the_streams_work() {
    let rgapsd = programs::find("rgapsd");
    if !again_with(&[("RGAPSD", rgapsd.to_str().unwrap())], link_into) {
        return;
    }
    let gpu = Control::load();
    let bench = Bench::new();
    let stream = bench.node.stream().unwrap();
    bench.images.loan(Image::new(8, 8, Encoding::Mono8).unwrap()).unwrap().publish().unwrap();
    let sample = bench.taken.take_on(&stream).unwrap().unwrap();
    let tensor = sample.into_dlpack().unwrap();
    gpu.hold();
    drop(tensor);
    assert_eq!(bench.taken.statistics().held, 1, "the stream has not got there");
    gpu.go();
    stream.synchronize(LONG).unwrap();
    while bench.taken.statistics().held > 0 {
        rgaps_testing::pause();
    }
}
