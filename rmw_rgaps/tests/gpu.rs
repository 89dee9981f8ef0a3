//! GPU topics through the layer, over an inner RMW made for it and a real manager: messages published in the core are taken, waited for and
//! reported.

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions

mod common;

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::Library;
use rgaps::dynamic::{DynamicMeta, DynamicPublisher, Kind};
use rgaps::types::{DType, Encoding, Image, Tensor};
use rgaps::{Durability, MessageHandle, Node, PublisherQos};
use rgaps_testing::{RuntimeDir, Watchdog, again_with, programs};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const OK: c_int = 0;
const TIMEOUT: c_int = 2;
const UNSUPPORTED: c_int = 3;
const ERROR: c_int = 1;
const INVALID_ARGUMENT: c_int = 11;
const INCORRECT_RMW: c_int = 12;
const DOMAIN: u32 = 7;
const TOPIC: &str = "/camera/front";

type Pointer = *mut c_void;

/// Runs the test in its own process, with the doubles in its folder of libraries.
fn again(settings: &[(&str, &str)]) -> bool {
    again_over(common::forwarding_into, settings)
}

fn again_over(inner_into: fn(&Path), settings: &[(&str, &str)]) -> bool {
    let rgapsd = programs::find("rgapsd");
    let mut all = vec![
        ("RGAPS_INNER_RMW", common::FORWARDING),
        ("RGAPSD", rgapsd.to_str().unwrap()),
        ("RGAPS_NETWORK", "local"),
        ("RGAPS_DEVICE", "host"),
    ];
    all.extend(settings);
    again_with(&all, |folder: &Path| {
        common::rcutils_into(folder);
        inner_into(folder);
        Ok(())
    })
}

/// The layer over the forwarding inner RMW, a node of it, and a node of the core beside it.
struct Bench {
    core: Node,
    node: Pointer,
    context: Pointer,
    layer: Library,
    inner: Library,
    rcutils: Library,
    // Last, because it ends the manager.
    _dir: RuntimeDir,
    _watchdog: Watchdog,
}

macro_rules! call {
    ($library:expr, $name:literal ($($arg:expr),*) : ($($type:ty),*) -> $result:ty) => {{
        // SAFETY: rmw, or the double, declares it with this type.
        let function: unsafe extern "C" fn($($type),*) -> $result = unsafe { std::mem::transmute($library.find($name)) };
        // SAFETY: arguments as the function asks.
        unsafe { function($($arg),*) }
    }};
}

impl Bench {
    fn new() -> Self {
        let _watchdog = Watchdog::new(Duration::from_secs(120));
        let _dir = RuntimeDir::new("rmw").unwrap();
        // SAFETY: no other thread of this process runs yet.
        unsafe { std::env::set_var("RGAPS_RUNTIME_DIR", _dir.path()) };
        let folder = PathBuf::from(std::env::var_os("LD_LIBRARY_PATH").unwrap());
        let rcutils = Library::load(&folder.join("librcutils.so"), true);
        let layer = Library::load(&common::layer(), false);
        let inner = Library::load(&folder.join("librmw_forwarding.so"), false);
        let core = Node::builder().runtime_dir(_dir.path()).domain(DOMAIN).build().unwrap();
        let context = call!(inner, "double_context"(DOMAIN as usize): (usize) -> Pointer);
        let node = call!(layer, "rmw_create_node"(context, c"n".as_ptr(), c"/".as_ptr()): (Pointer, *const c_char, *const c_char) -> Pointer);
        Self { core, node, context, layer, inner, rcutils, _dir, _watchdog }
    }

    fn core_publisher(&self, qos: PublisherQos) -> DynamicPublisher {
        DynamicPublisher::new(&self.core, TOPIC, Kind::Image, qos).unwrap()
    }

    fn type_support(&self, kind: Kind) -> Pointer {
        let name = match kind {
            Kind::Image => c"GpuImage",
            Kind::Tensor => c"GpuTensor",
            _ => c"Other",
        };
        let arguments = (c"rgaps_msgs__msg".as_ptr(), name.as_ptr(), bytes_of(kind));
        call!(self.inner, "double_type"(arguments.0, arguments.1, arguments.2): (*const c_char, *const c_char, usize) -> Pointer)
    }

    fn qos(&self, depth: usize, keep_all: bool, transient_local: bool) -> Pointer {
        call!(self.inner, "double_qos"(depth, keep_all, transient_local): (usize, bool, bool) -> Pointer)
    }

    fn subscription_with(&self, library: &Library, qos: Pointer, ignore_local: bool) -> Pointer {
        let topic = CString::new(TOPIC).unwrap();
        let options = call!(self.inner, "double_options"(ignore_local): (bool) -> Pointer);
        let support = self.type_support(Kind::Image);
        call!(library, "rmw_create_subscription"(self.node, support, topic.as_ptr(), qos, options):
            (Pointer, Pointer, *const c_char, Pointer, Pointer) -> Pointer)
    }

    /// A subscription of the layer with depth 10.
    fn subscription(&self) -> Pointer {
        let subscription = self.subscription_with(&self.layer, self.qos(10, false, false), false);
        assert!(!subscription.is_null(), "{}", self.error());
        subscription
    }

    fn publisher(&self) -> Pointer {
        let topic = CString::new(TOPIC).unwrap();
        let (support, qos) = (self.type_support(Kind::Image), self.qos(10, false, false));
        let publisher = call!(self.layer, "rmw_create_publisher"(self.node, support, topic.as_ptr(), qos, null_mut()):
            (Pointer, Pointer, *const c_char, Pointer, Pointer) -> Pointer);
        assert!(!publisher.is_null(), "{}", self.error());
        publisher
    }

    fn publish(&self, publisher: Pointer, descriptor: &[u8]) -> c_int {
        call!(self.layer, "rmw_publish"(publisher, descriptor.as_ptr(), null_mut()): (Pointer, *const u8, Pointer) -> c_int)
    }

    fn destroy_subscription(&self, subscription: Pointer) {
        let result =
            call!(self.layer, "rmw_destroy_subscription"(self.node, subscription): (Pointer, Pointer) -> c_int);
        assert_eq!(result, OK, "{}", self.error());
    }

    fn destroy_publisher(&self, publisher: Pointer) {
        let result = call!(self.layer, "rmw_destroy_publisher"(self.node, publisher): (Pointer, Pointer) -> c_int);
        assert_eq!(result, OK, "{}", self.error());
    }

    fn wait_set(&self) -> Pointer {
        call!(self.layer, "rmw_create_wait_set"(self.context, 0): (Pointer, usize) -> Pointer)
    }

    /// Waits for subscriptions, guard conditions and events; returns which are ready.
    fn wait(
        &self,
        wait_set: Pointer,
        entities: &[Pointer],
        guards: &[Pointer],
        events: &[Pointer],
        time: Option<Duration>,
    ) -> Waited {
        // `data` is the second member of each handle.
        let data_of = |handle: &Pointer| common::at(handle.cast::<Pointer>(), 1);
        let mut entities: Vec<Pointer> = entities.iter().map(data_of).collect();
        let mut guards: Vec<Pointer> = guards.iter().map(data_of).collect();
        let mut events = events.to_vec();
        let mut arrays = [&mut entities, &mut guards, &mut events].map(|list| (list.len(), list.as_mut_ptr()));
        let [subscriptions, conditions, of_events] = &mut arrays;
        let time = time.map(|time| [time.as_secs(), u64::from(time.subsec_nanos())]);
        let time = time.as_ref().map_or(std::ptr::null(), |time| time.as_ptr());
        let result = call!(self.layer, "rmw_wait"(
                (&raw mut *subscriptions).cast(), (&raw mut *conditions).cast(), null_mut(), null_mut(),
                (&raw mut *of_events).cast(), wait_set, time):
            (Pointer, Pointer, Pointer, Pointer, Pointer, Pointer, *const u64) -> c_int);
        let ready = |list: &[Pointer]| list.iter().map(|pointer| !pointer.is_null()).collect();
        Waited { result, subscriptions: ready(&entities), guards: ready(&guards), events: ready(&events) }
    }

    /// Waits for one subscription without a time-out.
    fn wait_for(&self, subscription: Pointer) {
        let wait_set = self.wait_set();
        let waited = self.wait(wait_set, &[subscription], &[], &[], None);
        assert_eq!((waited.result, waited.subscriptions), (OK, vec![true]), "{}", self.error());
    }

    fn take(&self, subscription: Pointer) -> Option<(Vec<u8>, [i64; 4])> {
        // More than any distro's rmw_message_info_t.
        let (mut message, mut info, mut taken) = (aligned(), [0_i64; 16], false);
        let result = self.try_take(subscription, &mut message, &mut taken, &mut info);
        assert_eq!(result, OK, "{}", self.error());
        taken.then(|| (bytes(&message, bytes_of(Kind::Image)), *info.first_chunk().unwrap()))
    }

    fn try_take(&self, subscription: Pointer, message: &mut [u64], taken: &mut bool, info: &mut [i64; 16]) -> c_int {
        call!(self.layer, "rmw_take_with_info"(subscription, message.as_mut_ptr(), taken, info.as_mut_ptr(), null_mut()):
            (Pointer, *mut u64, *mut bool, *mut i64, Pointer) -> c_int)
    }

    fn error(&self) -> String {
        common::error(&self.rcutils)
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let strangers = call!(self.inner, "double_strangers"(): () -> c_int);
            assert_eq!(strangers, 0, "the inner RMW saw handles that are not its own");
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Waited {
    result: c_int,
    subscriptions: Vec<bool>,
    guards: Vec<bool>,
    events: Vec<bool>,
}

fn bytes_of(kind: Kind) -> usize {
    (MessageHandle::BYTES + kind.encoded_bytes()).next_multiple_of(8)
}

fn aligned() -> [u64; 256] {
    [0; 256]
}

fn bytes(words: &[u64], count: usize) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).take(count).collect()
}

fn picture(value: u8) -> (DynamicMeta, Vec<u8>) {
    let image = Image::new(4, 2, Encoding::Rgb8).unwrap();
    (image.into(), vec![value; 24])
}

fn push(publisher: &DynamicPublisher, value: u8) -> MessageHandle {
    let (meta, bytes) = picture(value);
    publisher.push(&meta, &bytes).unwrap()
}

/// A descriptor as a node would send it.
fn descriptor(handle: &MessageHandle) -> Vec<u8> {
    let mut encoded = [0; 1024];
    let length = picture(0).0.encode(&mut encoded);
    let mut descriptor = handle.to_bytes().to_vec();
    descriptor.extend(&encoded[..length]);
    descriptor.resize(2048, 0);
    descriptor
}

/// Waits until the condition holds; the watchdog ends a wait that never does.
fn until(what: impl Fn() -> bool) {
    while !what() {
        rgaps_testing::pause();
    }
}

#[test]
fn a_message_of_the_core_wakes_a_wait_set_and_is_taken_as_its_descriptor() {
    if !again(&[]) {
        return;
    }
    let bench = Bench::new();
    let (subscription, publisher) = (bench.subscription(), bench.core_publisher(PublisherQos::default()));
    let wait_set = bench.wait_set();
    let nothing = bench.wait(wait_set, &[subscription], &[], &[], Some(Duration::ZERO));
    assert_eq!((nothing.result, nothing.subscriptions), (TIMEOUT, vec![false]));
    let handle = std::thread::scope(|scope| {
        let pusher = scope.spawn(|| push(&publisher, 1));
        bench.wait_for(subscription);
        pusher.join().unwrap()
    });
    let (taken, [published, received, sequence, place]) = bench.take(subscription).unwrap();
    assert_eq!(taken, descriptor(&handle)[..bytes_of(Kind::Image)]);
    assert!(published > 0 && received >= published);
    assert_eq!((sequence, place), (1, 1));
    assert_eq!(bench.take(subscription), None);
    bench.destroy_subscription(subscription);
}

#[test]
fn other_entities_in_a_wait_set_with_a_gpu_subscription_are_reported_as_usual() {
    if !again(&[]) {
        return;
    }
    let bench = Bench::new();
    let (subscription, publisher) = (bench.subscription(), bench.core_publisher(PublisherQos::default()));
    let guard = call!(bench.layer, "rmw_create_guard_condition"(bench.context): (Pointer) -> Pointer);
    let wait_set = bench.wait_set();
    let trigger = || call!(bench.layer, "rmw_trigger_guard_condition"(guard): (Pointer) -> c_int);
    let wait = |time| bench.wait(wait_set, &[subscription], &[guard], &[], time);
    trigger();
    let told = |result, subscription, guard| Waited {
        result,
        subscriptions: vec![subscription],
        guards: vec![guard],
        events: vec![],
    };
    assert_eq!(wait(None), told(OK, false, true));
    push(&publisher, 1);
    assert_eq!(wait(None), told(OK, true, false));
    trigger();
    assert_eq!(wait(None), told(OK, true, true));
    bench.take(subscription).unwrap();
    assert_eq!(wait(Some(Duration::from_millis(1))), told(TIMEOUT, false, false));
    bench.destroy_subscription(subscription);
}

#[test]
fn a_descriptor_of_an_earlier_run_is_dropped_and_logged_once() {
    if !again(&[]) {
        return;
    }
    let bench = Bench::new();
    let (subscription, publisher) = (bench.subscription(), bench.core_publisher(PublisherQos::default()));
    let handle = push(&publisher, 1);
    bench.wait_for(subscription);
    bench.take(subscription).unwrap();
    let old = descriptor(&MessageHandle { host_epoch: handle.host_epoch - 1, ..handle });
    let topic = CString::new(TOPIC).unwrap();
    for _ in 0..3 {
        call!(bench.inner, "double_deliver"(topic.as_ptr(), old.as_ptr(), bytes_of(Kind::Image)): (*const c_char, *const u8, usize) -> ());
    }
    until(|| common::logged(&bench.rcutils).contains("earlier run"));
    until(|| call!(bench.inner, "double_queued"(topic.as_ptr()): (*const c_char) -> usize) == 0);
    let waited = bench.wait(bench.wait_set(), &[subscription], &[], &[], Some(Duration::ZERO));
    assert_eq!((waited.result, waited.subscriptions), (TIMEOUT, vec![false]));
    assert_eq!(bench.take(subscription), None);
    let log = common::logged(&bench.rcutils);
    assert_eq!(log.matches("earlier run").count(), 1, "{log}");
    assert!(log.contains("[30] [rmw_rgaps] /camera/front: rgaps_msgs/msg/GpuImage 1"), "{log}");
    bench.destroy_subscription(subscription);
}

#[test]
fn an_inner_rmw_that_does_not_report_messages_is_drained_at_takes() {
    if !again_over(common::deaf_into, &[]) {
        return;
    }
    let bench = Bench::new();
    let (subscription, publisher) = (bench.subscription(), bench.core_publisher(PublisherQos::default()));
    let (handle, topic) = (push(&publisher, 1), CString::new(TOPIC).unwrap());
    call!(bench.inner, "double_deliver"(topic.as_ptr(), descriptor(&handle).as_ptr(), bytes_of(Kind::Image)): (*const c_char, *const u8, usize) -> ());
    bench.wait_for(subscription);
    assert!(bench.take(subscription).is_some());
    until(|| call!(bench.inner, "double_queued"(topic.as_ptr()): (*const c_char) -> usize) == 0);
    assert_eq!(bench.take(subscription), None, "once");
    bench.destroy_subscription(subscription);
}

#[test]
fn only_descriptors_of_messages_that_the_core_knows_are_published() {
    if !again(&[]) {
        return;
    }
    let bench = Bench::new();
    let (publisher, core) = (bench.publisher(), bench.core_publisher(PublisherQos::default()));
    // On the inner RMW alone, so that it keeps the messages sent.
    let plain = bench.subscription_with(&bench.inner, bench.qos(10, false, false), false);
    let handle = push(&core, 1);
    assert_eq!(bench.publish(publisher, &descriptor(&handle)), OK, "{}", bench.error());
    let topic = CString::new(TOPIC).unwrap();
    let queued = || call!(bench.inner, "double_queued"(topic.as_ptr()): (*const c_char) -> usize);
    assert_eq!(queued(), 1);
    // No subscriber holds it any more, and its entry has another message: its descriptor is published all the same.
    let later: Vec<MessageHandle> = (0..3).map(|value| push(&core, value)).collect();
    assert_eq!(bench.publish(publisher, &descriptor(&handle)), OK, "{}", bench.error());
    let elsewhere = DynamicPublisher::new(&bench.core, "/other", Kind::Image, PublisherQos::default()).unwrap();
    let refused = [
        (MessageHandle::default(), "layout version 0"),
        (MessageHandle { kind: Kind::Tensor.code(), ..handle }, "kind 3, where 1 (image) is needed"),
        (MessageHandle { host_epoch: handle.host_epoch + 1, ..handle }, "of an earlier run"),
        (MessageHandle { sequence: 0, ..handle }, "names no message"),
        (MessageHandle { sequence: 99, ..later[2] }, "names message 99 of publisher"),
        (MessageHandle { publisher: 5, ..later[2] }, "which is no message of this topic that this host has"),
        (push(&elsewhere, 1), "which is no message of this topic"),
        (MessageHandle { source_host: [9; 16], ..later[2] }, "which is no message of this topic"),
        (MessageHandle { entry: u32::MAX, source_host: [9; 16], ..later[2] }, "which is no message of this topic"),
        (
            MessageHandle { generation: later[2].generation + 1, source_host: [9; 16], ..later[2] },
            "which is no message",
        ),
    ];
    for (handle, why) in refused {
        assert_eq!(bench.publish(publisher, &descriptor(&handle)), INVALID_ARGUMENT);
        let error = bench.error();
        assert!(error.contains(why) && error.contains("/camera/front: a rgaps_msgs/msg/GpuImage"), "{error}");
    }
    assert_eq!(queued(), 2);
    let result = call!(bench.inner, "rmw_destroy_subscription"(bench.node, plain): (Pointer, Pointer) -> c_int);
    assert_eq!(result, OK);
    bench.destroy_publisher(publisher);
}

#[test]
fn a_loaned_descriptor_has_its_kind_and_is_published_once() {
    if !again(&[]) {
        return;
    }
    let bench = Bench::new();
    let (publisher, core) = (bench.publisher(), bench.core_publisher(PublisherQos::default()));
    let support = bench.type_support(Kind::Image);
    let borrow = |into: &mut Pointer| call!(bench.layer, "rmw_borrow_loaned_message"(publisher, support, &raw mut *into): (Pointer, Pointer, *mut Pointer) -> c_int);
    let publish = |loan| call!(bench.layer, "rmw_publish_loaned_message"(publisher, loan, null_mut()): (Pointer, Pointer, Pointer) -> c_int);
    let give_back = |loan| call!(bench.layer, "rmw_return_loaned_message_from_publisher"(publisher, loan): (Pointer, Pointer) -> c_int);
    let mut loan = null_mut();
    assert_eq!(borrow(&mut loan), OK);
    // SAFETY: a descriptor, which begins with a handle.
    let place = unsafe { &mut *loan.cast::<[u8; MessageHandle::BYTES]>() };
    let empty = MessageHandle::from_bytes(place);
    assert_eq!(
        (empty.layout_version, empty.kind, empty.sequence),
        (MessageHandle::LAYOUT_VERSION, Kind::Image.code(), 0)
    );
    assert_eq!(publish(loan), INVALID_ARGUMENT, "it names nothing yet");
    *place = push(&core, 1).to_bytes();
    assert_eq!(publish(loan), OK, "{}", bench.error());
    assert_eq!((publish(loan), give_back(loan)), (INVALID_ARGUMENT, INVALID_ARGUMENT), "it is gone");
    let mut other = null_mut();
    assert_eq!((borrow(&mut other), give_back(other), give_back(other)), (OK, OK, INVALID_ARGUMENT));
    assert_eq!(borrow(&mut loan), INVALID_ARGUMENT, "there is a message in its place");
    let another = bench.publisher();
    assert_eq!(borrow(&mut null_mut()), OK);
    let mut lent = null_mut();
    assert_eq!(borrow(&mut lent), OK);
    let give_to_another =
        call!(bench.layer, "rmw_return_loaned_message_from_publisher"(another, lent): (Pointer, Pointer) -> c_int);
    assert_eq!(give_to_another, INVALID_ARGUMENT);
    bench.destroy_publisher(another);
    bench.destroy_publisher(publisher);
    assert!(common::logged(&bench.rcutils).contains("2 lent messages never came back"));
    // SAFETY: a loan that is not returned stays allocated.
    unsafe { lent.write_bytes(7, bytes_of(Kind::Image)) };
}

#[test]
fn serialized_descriptors_are_checked_and_taken_too() {
    if !again(&[]) {
        return;
    }
    let bench = Bench::new();
    let (publisher, subscription) = (bench.publisher(), bench.subscription());
    let core = bench.core_publisher(PublisherQos::default());
    let handle = push(&core, 1);
    bench.wait_for(subscription);
    let serialized = call!(bench.inner, "double_serialized"(): () -> Pointer);
    let mut taken = false;
    let take = |taken: *mut bool| {
        call!(bench.layer, "rmw_take_serialized_message"(subscription, serialized, taken, null_mut()):
            (Pointer, Pointer, *mut bool, Pointer) -> c_int)
    };
    assert_eq!((take(&raw mut taken), taken), (OK, true), "{}", bench.error());
    // SAFETY: the buffer is the first member, and has such a descriptor.
    let buffer = unsafe { *serialized.cast::<*mut u8>() };
    // SAFETY: as above.
    let first = unsafe { buffer.cast::<[u8; MessageHandle::BYTES]>().read() };
    assert_eq!(MessageHandle::from_bytes(&first), handle);
    assert_eq!((take(&raw mut taken), taken), (OK, false));
    let publish = || call!(bench.layer, "rmw_publish_serialized_message"(publisher, serialized, null_mut()): (Pointer, Pointer, Pointer) -> c_int);
    assert_eq!(publish(), OK, "{}", bench.error());
    // SAFETY: as above.
    unsafe { buffer.write_bytes(0, MessageHandle::BYTES) };
    assert_eq!(publish(), INVALID_ARGUMENT);
    bench.destroy_publisher(publisher);
    bench.destroy_subscription(subscription);
}

#[test]
fn a_sequence_and_loans_are_taken_in_the_cores_order() {
    if !again(&[]) {
        return;
    }
    let bench = Bench::new();
    let (subscription, core) = (bench.subscription(), bench.core_publisher(PublisherQos::default()));
    let handles: Vec<MessageHandle> = (0..5).map(|value| push(&core, value)).collect();
    let messages = call!(bench.inner, "double_messages"(3): (usize) -> Pointer);
    let infos = call!(bench.inner, "double_infos"(3): (usize) -> Pointer);
    let mut count = 0_usize;
    let take = |wanted: usize, count: *mut usize| {
        call!(bench.layer, "rmw_take_sequence"(subscription, wanted, messages, infos, count, null_mut()):
            (Pointer, usize, Pointer, Pointer, *mut usize, Pointer) -> c_int)
    };
    assert_eq!((take(4, &raw mut count), take(0, &raw mut count)), (INVALID_ARGUMENT, INVALID_ARGUMENT));
    assert_eq!((take(3, &raw mut count), count), (OK, 3), "{}", bench.error());
    for (place, handle) in handles[..3].iter().enumerate() {
        // The sequence's first member is an array of pointers to messages.
        let array: *mut *mut [u8; MessageHandle::BYTES] = common::at(messages.cast(), 0);
        let message = common::at(array, place);
        // SAFETY: a message that begins with a handle.
        assert_eq!(MessageHandle::from_bytes(unsafe { &*message }), *handle);
    }
    let (mut loan, mut taken) = (null_mut(), false);
    let mut take_loan = || {
        let result = call!(bench.layer, "rmw_take_loaned_message"(subscription, &raw mut loan, &raw mut taken, null_mut()):
            (Pointer, *mut Pointer, *mut bool, Pointer) -> c_int);
        (result, taken, loan)
    };
    let (result, taken, loan) = take_loan();
    assert_eq!((result, taken), (OK, true));
    // SAFETY: a message that begins with a handle.
    assert_eq!(MessageHandle::from_bytes(unsafe { &*loan.cast::<[u8; MessageHandle::BYTES]>() }), handles[3]);
    let give_back = |loan| call!(bench.layer, "rmw_return_loaned_message_from_subscription"(subscription, loan): (Pointer, Pointer) -> c_int);
    assert_eq!((give_back(loan), give_back(loan)), (OK, INVALID_ARGUMENT));
    assert_eq!((take(3, &raw mut count), count), (OK, 1), "the last one");
    bench.destroy_subscription(subscription);
}

static TOLD: AtomicUsize = AtomicUsize::new(0);

extern "C" fn tell(_: *const c_void, count: usize) {
    TOLD.fetch_add(count, Ordering::SeqCst);
}

#[test]
fn the_callback_is_told_of_messages_already_waiting_and_of_each_new_one() {
    if !again(&[]) {
        return;
    }
    let bench = Bench::new();
    let (subscription, core) = (bench.subscription(), bench.core_publisher(PublisherQos::default()));
    for value in 0..3 {
        push(&core, value);
    }
    let set = |callback: Option<extern "C" fn(*const c_void, usize)>| {
        let result = call!(bench.layer, "rmw_subscription_set_on_new_message_callback"(subscription, callback, null_mut()):
            (Pointer, Option<extern "C" fn(*const c_void, usize)>, Pointer) -> c_int);
        assert_eq!(result, OK);
    };
    set(Some(tell));
    assert_eq!(TOLD.load(Ordering::SeqCst), 3);
    for value in 0..4 {
        bench.take(subscription).unwrap();
        push(&core, value);
        until(|| TOLD.load(Ordering::SeqCst) == 4 + usize::from(value));
    }
    set(None);
    push(&core, 9);
    bench.wait_for(subscription);
    assert_eq!(TOLD.load(Ordering::SeqCst), 7, "no callback is called any more");
    bench.destroy_subscription(subscription);
}

/// What a callback does with its subscription, and how often it was called.
struct Meddling<'a> {
    bench: &'a Bench,
    subscription: Pointer,
    does: fn(&Self),
    calls: AtomicUsize,
}

extern "C" fn meddle(meddling: *const c_void, _: usize) {
    // SAFETY: the tests give the callback one of these, which outlives it.
    let meddling = unsafe { &*meddling.cast::<Meddling<'_>>() };
    (meddling.does)(meddling);
    meddling.calls.fetch_add(1, Ordering::SeqCst);
}

impl Meddling<'_> {
    fn set(&self, callback: Option<extern "C" fn(*const c_void, usize)>) {
        let own: *const Self = self;
        let result = call!(self.bench.layer, "rmw_subscription_set_on_new_message_callback"(self.subscription, callback, own.cast()):
            (Pointer, Option<extern "C" fn(*const c_void, usize)>, *const c_void) -> c_int);
        assert_eq!(result, OK);
    }
}

#[test]
fn a_callback_may_take_set_another_callback_and_destroy_its_subscription() {
    if !again(&[]) {
        return;
    }
    let bench = Bench::new();
    let core = bench.core_publisher(PublisherQos::default());
    let deeds: [fn(&Meddling<'_>); 4] = [
        |of| assert!(of.bench.take(of.subscription).is_some()),
        |of| of.set(None),
        |of| of.set(Some(meddle)),
        |of| of.bench.destroy_subscription(of.subscription),
    ];
    for does in deeds {
        // Called at once, by the thread that sets it; and later by the layer's thread, whose last subscription this is.
        for is_at_once in [true, false] {
            let subscription = bench.subscription();
            let meddling = Meddling { bench: &bench, subscription, does, calls: AtomicUsize::new(0) };
            if is_at_once {
                push(&core, 1);
            }
            meddling.set(Some(meddle));
            if !is_at_once {
                assert_eq!(meddling.calls.load(Ordering::SeqCst), 0);
                push(&core, 1);
            }
            until(|| meddling.calls.load(Ordering::SeqCst) == 1);
            if !std::ptr::fn_addr_eq(does, deeds[3]) {
                bench.destroy_subscription(subscription);
            }
            assert_eq!(meddling.calls.load(Ordering::SeqCst), 1);
        }
    }
}

#[test]
fn a_node_of_another_rmw_destroys_nothing() {
    if !again(&[]) {
        return;
    }
    let bench = Bench::new();
    let (publisher, subscription) = (bench.publisher(), bench.subscription());
    // A node begins with its identifier.
    let stranger = [c"rmw_of_somebody".as_ptr(); 8];
    for (node, refused) in [(null_mut(), INVALID_ARGUMENT), (stranger.as_ptr().cast_mut().cast(), INCORRECT_RMW)] {
        for (name, entity) in [("rmw_destroy_publisher", publisher), ("rmw_destroy_subscription", subscription)] {
            // SAFETY: rmw declares both with such types.
            let destroy: unsafe extern "C" fn(Pointer, Pointer) -> c_int =
                unsafe { std::mem::transmute(bench.layer.find(name)) };
            // SAFETY: what begins with an identifier, or null, and an entity.
            assert_eq!(unsafe { destroy(node, entity) }, refused, "{}", bench.error());
        }
    }
    let handle = push(&bench.core_publisher(PublisherQos::default()), 1);
    assert_eq!(bench.publish(publisher, &descriptor(&handle)), OK, "{}", bench.error());
    bench.wait_for(subscription);
    assert!(bench.take(subscription).is_some());
    bench.destroy_publisher(publisher);
    bench.destroy_subscription(subscription);
}

#[test]
fn a_forked_child_is_refused_and_what_it_destroys_continues_in_the_parent() {
    if !again(&[]) {
        return;
    }
    let bench = Bench::new();
    let (publisher, subscription) = (bench.publisher(), bench.subscription());
    let core = bench.core_publisher(PublisherQos::default());
    let handle = push(&core, 1);
    // The topic's segment is open for lookups.
    assert_eq!(bench.publish(publisher, &descriptor(&handle)), OK, "{}", bench.error());
    bench.wait_for(subscription);
    assert!(bench.take(subscription).is_some());
    let wait_set = bench.wait_set();
    // SAFETY: the child uses no lock of another thread's: what it calls asks first whose process it is. It leaves by _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refused = || {
            assert_eq!(bench.publish(publisher, &descriptor(&handle)), ERROR);
            let (mut message, mut taken) = (aligned(), false);
            let take = call!(bench.layer, "rmw_take"(subscription, message.as_mut_ptr(), &raw mut taken, null_mut()):
                (Pointer, *mut u64, *mut bool, Pointer) -> c_int);
            assert_eq!((take, taken), (ERROR, false));
            assert!(bench.error().contains("belongs to the parent process"), "{}", bench.error());
            assert_eq!(bench.wait(wait_set, &[subscription], &[], &[], None).result, ERROR);
            bench.destroy_subscription(subscription);
            bench.destroy_publisher(publisher);
        };
        let is_refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(refused)).is_ok();
        // SAFETY: ends the child without its parent's destructors.
        unsafe { libc::_exit(i32::from(!is_refused)) };
    }
    let mut status = 0;
    // SAFETY: the child made above, and a place for its status.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!((waited, status), (child, 0));
    std::thread::scope(|scope| {
        let pusher = scope.spawn(|| push(&core, 2));
        bench.wait_for(subscription);
        pusher.join().unwrap();
    });
    assert!(bench.take(subscription).is_some());
    bench.destroy_subscription(subscription);
    bench.destroy_publisher(publisher);
}

#[test]
fn forged_descriptors_do_not_fill_the_log() {
    if !again(&[]) {
        return;
    }
    let bench = Bench::new();
    let subscription = bench.subscription();
    let topic = CString::new(TOPIC).unwrap();
    for publisher in 0..300 {
        let nonsense = descriptor(&MessageHandle { publisher, ..MessageHandle::default() });
        call!(bench.inner, "double_deliver"(topic.as_ptr(), nonsense.as_ptr(), bytes_of(Kind::Image)): (*const c_char, *const u8, usize) -> ());
        until(|| call!(bench.inner, "double_queued"(topic.as_ptr()): (*const c_char) -> usize) == 0);
    }
    until(|| common::logged(&bench.rcutils).contains("no more publishers of this kind are named"));
    let log = common::logged(&bench.rcutils);
    assert_eq!(log.matches("was it filled by RGAPS?").count(), 64, "{log}");
    bench.destroy_subscription(subscription);
}

#[test]
fn any_depth_is_a_depth() {
    if !again(&[]) {
        return;
    }
    let bench = Bench::new();
    let core = bench.core_publisher(PublisherQos::default());
    for depth in [0, 1, usize::MAX] {
        let subscription = bench.subscription_with(&bench.layer, bench.qos(depth, false, false), false);
        assert!(!subscription.is_null(), "{}", bench.error());
        push(&core, 1);
        bench.wait_for(subscription);
        assert!(bench.take(subscription).is_some());
        bench.destroy_subscription(subscription);
    }
}

/// The manager that the bench's node has started.
fn manager_of(dir: &RuntimeDir) -> libc::pid_t {
    let is_it = |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap().contains("--detached");
    dir.users().unwrap().into_iter().find(is_it).unwrap() as libc::pid_t
}

#[test]
fn a_take_that_asks_a_stopped_manager_delays_no_wait() {
    if !again(&[]) {
        return;
    }
    let bench = Bench::new();
    // With a publisher in this process, the take asks the manager for the publisher's process.
    let (publisher, subscription) = (bench.publisher(), bench.subscription());
    let mut event = [null_mut::<c_void>(); 4];
    let event: Pointer = event.as_mut_ptr().cast();
    let result = call!(bench.layer, "rmw_subscription_event_init"(event, subscription, message_lost()): (Pointer, Pointer, c_int) -> c_int);
    assert_eq!(result, OK, "{}", bench.error());
    let wait_set = bench.wait_set();
    push(&bench.core_publisher(PublisherQos::default()), 1);
    let (manager, shared, address) = (manager_of(&bench._dir), Shared(&bench), subscription as usize);
    // SAFETY: a process of this test's.
    assert_eq!(unsafe { libc::kill(manager, libc::SIGSTOP) }, 0);
    std::thread::scope(|scope| {
        let taker = scope.spawn(|| shared.bench().take(address as Pointer).is_some());
        let wait = |events: &[Pointer]| bench.wait(wait_set, &[subscription], &[], events, Some(Duration::ZERO));
        until(|| wait(&[]).result == TIMEOUT);
        assert_eq!(wait(&[event]).result, TIMEOUT);
        assert!(!taker.is_finished(), "the wait has waited for it");
        // SAFETY: as above.
        assert_eq!(unsafe { libc::kill(manager, libc::SIGCONT) }, 0);
        assert!(taker.join().unwrap());
    });
    bench.destroy_subscription(subscription);
    bench.destroy_publisher(publisher);
}

#[test]
fn a_wait_outlives_its_manager() {
    if !again(&[]) {
        return;
    }
    let bench = Bench::new();
    let (subscription, before) = (bench.subscription(), bench.core_publisher(PublisherQos::default()));
    let (manager, shared, address) = (manager_of(&bench._dir), Shared(&bench), subscription as usize);
    std::thread::scope(|scope| {
        for signal in [libc::SIGSTOP, libc::SIGKILL] {
            let waiter = scope.spawn(|| shared.bench().wait_for(address as Pointer));
            // SAFETY: a process of this test's.
            assert_eq!(unsafe { libc::kill(manager, signal) }, 0);
            push(&before, 1);
            waiter.join().unwrap();
            assert!(bench.take(subscription).is_some(), "without a manager");
        }
        // The successor tells a new publisher which subscribers to wake.
        let waiter = scope.spawn(|| shared.bench().wait_for(address as Pointer));
        push(&bench.core_publisher(PublisherQos::default()), 2);
        waiter.join().unwrap();
        assert!(bench.take(subscription).is_some());
    });
    bench.destroy_subscription(subscription);
}

#[test]
fn a_subscription_that_was_cut_off_says_so_once_and_lets_later_waits_sleep() {
    if !again(&[]) {
        return;
    }
    let bench = Bench::new();
    let (subscription, publisher) = (bench.subscription(), bench.core_publisher(PublisherQos::default()));
    push(&publisher, 1);
    // While this process is stopped, a manager that does not know the topic replaces its manager, and another program makes the topic again.
    let script = r#"
        kill -STOP "$1"; kill -KILL "$2"
        rm -f "$RGAPS_RUNTIME_DIR"/topic-*
        "$3" sub "$4" --type image >/dev/null 2>&1 &
        until "$3" topic list 2>/dev/null | grep -q "$4"; do sleep 0.05; done
        kill -CONT "$1"
        read -r _; kill "$!""#;
    let mut other = std::process::Command::new("sh");
    other.env("ROS_DOMAIN_ID", DOMAIN.to_string()).stdin(std::process::Stdio::piped()).args(["-c", script, "sh"]);
    other.arg(std::process::id().to_string()).arg(manager_of(&bench._dir).to_string());
    let mut other = rgaps_testing::Child::spawn(other.arg(rgaps_testing::programs::find("rgaps")).arg(TOPIC)).unwrap();
    let wait_set = bench.wait_set();
    until(|| {
        let (mut message, mut info, mut taken) = (aligned(), [0_i64; 16], false);
        let is_ready = bench.wait(wait_set, &[subscription], &[], &[], Some(Duration::ZERO)).result == OK;
        is_ready && bench.try_take(subscription, &mut message, &mut taken, &mut info) == OK && !taken
    });
    for _ in 0..3 {
        assert_eq!(bench.take(subscription), None);
    }
    let log = common::logged(&bench.rcutils);
    assert_eq!(log.matches("was cut off from its topic; create it again").count(), 1, "{log}");
    assert_eq!(bench.wait(wait_set, &[subscription], &[], &[], Some(Duration::ZERO)).result, TIMEOUT);
    drop(other.std().stdin.take());
    assert!(matches!(other.wait_within(Duration::from_secs(60)), Ok(rgaps_testing::Ended::Exited(_))));
    bench.destroy_subscription(subscription);
}

#[test]
fn a_topic_without_free_slots_is_an_error_and_a_released_slot_is_free_again() {
    if !again(&[]) {
        return;
    }
    let bench = Bench::new();
    let make = || bench.subscription_with(&bench.layer, bench.qos(1, false, false), false);
    // Each subscription has file descriptors of its own.
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let all: Vec<Pointer> = std::iter::from_fn(|| Some(make()).filter(|made| !made.is_null())).take(1100).collect();
    assert_eq!(all.len(), 1024);
    for _ in 0..2 {
        assert!(make().is_null());
        let error = bench.error();
        assert!(error.contains("/camera/front (rgaps_msgs/msg/GpuImage)") && error.contains("1024"), "{error}");
    }
    bench.destroy_subscription(all[7]);
    let again = make();
    push(&bench.core_publisher(PublisherQos::default()), 1);
    bench.wait_for(again);
    assert!(bench.take(again).is_some());
    bench.destroy_subscription(again);
    all.iter().enumerate().filter(|(place, _)| *place != 7).for_each(|(_, made)| bench.destroy_subscription(*made));
}

#[test]
fn each_context_has_its_domain_and_ends_alone() {
    if !again(&[]) {
        return;
    }
    let mut bench = Bench::new();
    let own = bench.subscription();
    let context = call!(bench.inner, "double_context"(9): (usize) -> Pointer);
    let node = call!(bench.layer, "rmw_create_node"(context, c"n".as_ptr(), c"/".as_ptr()): (Pointer, *const c_char, *const c_char) -> Pointer);
    let first = std::mem::replace(&mut bench.node, node);
    let other = bench.subscription();
    push(&bench.core_publisher(PublisherQos::default()), 1);
    bench.wait_for(own);
    let waited = bench.wait(bench.wait_set(), &[other, own, own], &[], &[], Some(Duration::from_millis(20)));
    assert_eq!((waited.result, waited.subscriptions), (OK, vec![false, true, true]));
    bench.destroy_subscription(other);
    bench.node = first;
    assert!(bench.take(own).is_some());
    push(&bench.core_publisher(PublisherQos::default()), 2);
    bench.wait_for(own);
    bench.destroy_subscription(own);
}

#[test]
fn a_take_maps_no_payload() {
    if !again(&[]) {
        return;
    }
    let bench = Bench::new();
    let (subscription, core) = (bench.subscription(), bench.core_publisher(PublisherQos::default()));
    let mapped = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().filter(|line| line.contains("memfd:")).count()
    };
    push(&core, 1);
    let before = mapped();
    assert!(bench.take(subscription).is_some());
    assert_eq!(mapped(), before);
    bench.destroy_subscription(subscription);
}

#[test]
fn lost_messages_are_an_event_with_the_cores_counts() {
    if !again(&[]) {
        return;
    }
    let bench = Bench::new();
    let subscription = bench.subscription_with(&bench.layer, bench.qos(1, false, false), false);
    let core = bench.core_publisher(PublisherQos::default());
    let mut event = [null_mut::<c_void>(); 4];
    let event: Pointer = event.as_mut_ptr().cast();
    let result = call!(bench.layer, "rmw_subscription_event_init"(event, subscription, message_lost()): (Pointer, Pointer, c_int) -> c_int);
    assert_eq!(result, OK, "{}", bench.error());
    let wait_set = bench.wait_set();
    let wait = |time| bench.wait(wait_set, &[], &[], &[event], time);
    assert_eq!(wait(Some(Duration::ZERO)).events, [false]);
    std::thread::scope(|scope| {
        let pusher = scope.spawn(|| [1, 2, 3].map(|value| push(&core, value)));
        assert_eq!(wait(None).events, [true]);
        pusher.join().unwrap();
    });
    let take = || {
        let (mut status, mut taken) = ([0_usize; 2], false);
        let result = call!(bench.layer, "rmw_take_event"(event, status.as_mut_ptr(), &raw mut taken): (Pointer, *mut usize, *mut bool) -> c_int);
        assert_eq!((result, taken), (OK, true));
        status
    };
    assert_eq!(take(), [2, 2]);
    assert_eq!((wait(Some(Duration::ZERO)).events, take()), (vec![false], [2, 0]));
    let set = |callback: Option<extern "C" fn(*const c_void, usize)>| {
        call!(bench.layer, "rmw_event_set_callback"(event, callback, null_mut()):
            (Pointer, Option<extern "C" fn(*const c_void, usize)>, Pointer) -> c_int)
    };
    assert_eq!((set(Some(tell)), TOLD.load(Ordering::SeqCst)), (OK, 0));
    push(&core, 3);
    until(|| TOLD.load(Ordering::SeqCst) == 1);
    assert_eq!(take(), [3, 1]);
    bench.destroy_subscription(subscription);
    assert_ne!(set(None), OK, "its subscription is gone");
    assert!(bench.error().contains("the event's subscription was destroyed"));
}

/// RMW_EVENT_MESSAGE_LOST as the C compiler has found it.
fn message_lost() -> c_int {
    env!("RMW_MESSAGE_LOST").parse().unwrap()
}

#[test]
fn no_function_of_the_inner_rmw_sees_a_handle_of_the_layer() {
    if !again(&[]) {
        return;
    }
    let bench = Bench::new();
    let (publisher, subscription) = (bench.publisher(), bench.subscription());
    let mut event = [null_mut::<c_void>(); 4];
    let event: Pointer = event.as_mut_ptr().cast();
    call!(bench.layer, "rmw_subscription_event_init"(event, subscription, message_lost()): (Pointer, Pointer, c_int) -> c_int);
    let folder = PathBuf::from(std::env::var_os("LD_LIBRARY_PATH").unwrap());
    let calls = Library::load(&folder.join("libwith_handles.so"), false);
    #[repr(C)]
    #[derive(Clone, Copy)]
    struct Named {
        name: *const c_char,
        call: Option<unsafe extern "C" fn(Pointer, Pointer, Pointer, Pointer)>,
    }
    let array: *const Named = calls.find("double_handle_calls").cast();
    let mut count = 0;
    loop {
        // The array ends with nulls, which end the loop.
        let named = common::at(array, count);
        let Some(call) = named.call else { break };
        count += 1;
        // SAFETY: a C string of the double's.
        let name = unsafe { std::ffi::CStr::from_ptr(named.name) }.to_str().unwrap();
        // SAFETY: handles of the layer's, and nulls.
        unsafe { call(bench.layer.find(name), publisher, subscription, event) };
    }
    assert!(count > 25, "{count}");
    // Every test checks at its end whether the inner RMW saw handles other than its own.
    bench.destroy_publisher(publisher);
    bench.destroy_subscription(subscription);
}

#[test]
fn messages_of_this_process_are_ignored_on_request() {
    if !again(&[]) {
        return;
    }
    let bench = Bench::new();
    let deaf = bench.subscription_with(&bench.layer, bench.qos(10, false, false), true);
    let subscription = bench.subscription();
    push(&bench.core_publisher(PublisherQos::default()), 1);
    bench.wait_for(subscription);
    assert!(bench.take(subscription).is_some());
    assert_eq!(bench.take(deaf), None);
    bench.destroy_subscription(deaf);
    bench.destroy_subscription(subscription);
}

#[test]
fn a_late_joiner_gets_the_publishers_history_if_it_requests_it() {
    if !again(&[]) {
        return;
    }
    let bench = Bench::new();
    let core = bench.core_publisher(PublisherQos {
        durability: Durability::TransientLocal,
        history_depth: 2,
        ..PublisherQos::default()
    });
    let handles: Vec<MessageHandle> = (0..4).map(|value| push(&core, value)).collect();
    let late = bench.subscription_with(&bench.layer, bench.qos(10, false, true), false);
    bench.wait_for(late);
    let taken: Vec<Vec<u8>> =
        std::iter::from_fn(|| bench.take(late)).map(|(message, _)| message[..MessageHandle::BYTES].to_vec()).collect();
    assert_eq!(taken, [handles[2].to_bytes(), handles[3].to_bytes()]);
    let volatile = bench.subscription();
    assert_eq!(bench.take(volatile), None);
    bench.destroy_subscription(late);
    bench.destroy_subscription(volatile);
}

#[test]
fn no_wake_up_is_lost_between_many_waiters_and_a_fast_publisher() {
    if !again(&[]) {
        return;
    }
    const MESSAGES: usize = 500;
    const WAITERS: usize = 4;
    let bench = Bench::new();
    let core = bench.core_publisher(PublisherQos::default());
    let addresses: Vec<usize> = (0..WAITERS)
        .map(|_| bench.subscription_with(&bench.layer, bench.qos(MESSAGES, false, false), false) as usize)
        .collect();
    let shared = Shared(&bench);
    std::thread::scope(|scope| {
        for address in &addresses {
            let shared = &shared;
            scope.spawn(move || {
                let (bench, subscription, wait_set) = (shared.bench(), *address as Pointer, shared.bench().wait_set());
                let mut taken = 0;
                while taken < MESSAGES {
                    let waited = bench.wait(wait_set, &[subscription], &[], &[], None);
                    assert_eq!((waited.result, waited.subscriptions), (OK, vec![true]));
                    // One take a wait, so that most waits find messages left, and some find none.
                    taken += usize::from(bench.take(subscription).is_some());
                }
                assert_eq!(bench.take(subscription), None);
            });
        }
        for value in 0..MESSAGES {
            push(&core, value as u8);
        }
    });
    addresses.iter().for_each(|address| bench.destroy_subscription(*address as Pointer));
}

/// The bench for several threads: its functions are thread-safe, like rmw's.
struct Shared<'a>(&'a Bench);

impl Shared<'_> {
    fn bench(&self) -> &Bench {
        self.0
    }
}

// SAFETY: as above.
unsafe impl Sync for Shared<'_> {}

#[test]
fn entities_made_and_destroyed_while_messages_arrive_leak_nothing() {
    if !again(&[]) {
        return;
    }
    let bench = Bench::new();
    let core = bench.core_publisher(PublisherQos::default());
    let fds = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = RefCell::new(None);
    for round in 0..20 {
        let (publisher, subscription) = (bench.publisher(), bench.subscription());
        let handle = push(&core, round);
        assert_eq!(bench.publish(publisher, &descriptor(&handle)), OK, "{}", bench.error());
        bench.wait_for(subscription);
        assert!(bench.take(subscription).is_some());
        bench.destroy_subscription(subscription);
        bench.destroy_publisher(publisher);
        let first = *before.borrow_mut().get_or_insert_with(fds);
        // The notifier's thread may still handle an entity that was just destroyed.
        until(|| fds() <= first);
    }
}

#[test]
fn an_unreachable_core_is_an_error_that_says_what_to_do() {
    if !again(&[("RGAPS_AUTOSTART", "0")]) {
        return;
    }
    let _watchdog = Watchdog::new(Duration::from_secs(120));
    let dir = RuntimeDir::new("rmw").unwrap();
    // SAFETY: no other thread of this process runs yet.
    unsafe { std::env::set_var("RGAPS_RUNTIME_DIR", dir.path()) };
    let folder = PathBuf::from(std::env::var_os("LD_LIBRARY_PATH").unwrap());
    let rcutils = Library::load(&folder.join("librcutils.so"), true);
    let layer = Library::load(&common::layer(), false);
    let inner = Library::load(&folder.join("librmw_forwarding.so"), false);
    let context = call!(inner, "double_context"(0): (usize) -> Pointer);
    let node = call!(layer, "rmw_create_node"(context, c"n".as_ptr(), c"/".as_ptr()): (Pointer, *const c_char, *const c_char) -> Pointer);
    let support = call!(inner, "double_type"(c"rgaps_msgs__msg".as_ptr(), c"GpuTensor".as_ptr(), bytes_of(Kind::Tensor)):
        (*const c_char, *const c_char, usize) -> Pointer);
    let qos = call!(inner, "double_qos"(1, false, false): (usize, bool, bool) -> Pointer);
    let options = call!(inner, "double_options"(false): (bool) -> Pointer);
    for name in ["rmw_create_subscription", "rmw_create_publisher"] {
        // SAFETY: rmw declares both with such types.
        let create: unsafe extern "C" fn(Pointer, Pointer, *const c_char, Pointer, Pointer) -> Pointer =
            unsafe { std::mem::transmute(layer.find(name)) };
        // SAFETY: handles of the inner RMW's, and its options, which begin alike.
        let made = unsafe { create(node, support, c"/tensor".as_ptr(), qos, options) };
        assert!(made.is_null());
        let error = common::error(&rcutils);
        assert!(error.contains("/tensor (rgaps_msgs/msg/GpuTensor): the core cannot be reached"), "{error}");
        assert!(
            error.contains("RGAPSD") && error.contains("RGAPS_AUTOSTART") && error.contains("RGAPS_RUNTIME_DIR"),
            "{error}"
        );
    }
}

#[test]
fn content_filters_and_dynamic_data_are_refused_on_gpu_topics() {
    if !again(&[]) {
        return;
    }
    let bench = Bench::new();
    let subscription = bench.subscription();
    let result = call!(bench.layer, "rmw_subscription_set_content_filter"(subscription, null_mut()): (Pointer, Pointer) -> c_int);
    assert_eq!(result, UNSUPPORTED);
    assert!(bench.error().contains("no content filters"), "{}", bench.error());
    if common::functions().iter().any(|function| function.name == "rmw_take_dynamic_message") {
        let result = call!(bench.layer, "rmw_take_dynamic_message"(subscription, null_mut(), null_mut(), null_mut()):
            (Pointer, Pointer, Pointer, Pointer) -> c_int);
        assert_eq!(result, UNSUPPORTED);
    }
    bench.destroy_subscription(subscription);
}

#[test]
fn a_tensor_on_a_topic_of_images_is_refused_with_both_types() {
    if !again(&[]) {
        return;
    }
    let bench = Bench::new();
    let tensors = DynamicPublisher::new(&bench.core, TOPIC, Kind::Tensor, PublisherQos::default()).unwrap();
    tensors.push(&Tensor::new(DType::FLOAT32, &[2]).unwrap().into(), &[0; 8]).unwrap();
    let subscription = bench.subscription_with(&bench.layer, bench.qos(10, false, false), false);
    assert!(subscription.is_null());
    let error = bench.error();
    assert!(error.contains("/camera/front (rgaps_msgs/msg/GpuImage)") && error.contains("Tensor"), "{error}");
}
