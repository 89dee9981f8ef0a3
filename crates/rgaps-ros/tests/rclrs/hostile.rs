//! What publishers and subscriptions withstand on rclrs nodes: replayed and hostile descriptors, callbacks that destroy or panic, nodes dropped while
//! samples are held, and a node's own names and parameters. tests/ros/clients runs it.

#![allow(clippy::unwrap_used)] // a test

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rclrs::{Context, CreateBasicExecutor, Executor, IntoNodeOptions, IntoPrimitiveOptions, Node, SpinOptions};
use rgaps::types::{Encoding, Image, Tensor};
use rgaps::{MessageHandle, Sample};
use rgaps_ros::rclrs::{Publisher, Subscription};
use rgaps_ros::{Descriptor, GpuImage};

const LONG: Duration = Duration::from_secs(60);

type Test = (&'static str, fn(&mut Executor));
type Seen<T> = Arc<Mutex<Vec<T>>>;

fn main() {
    let tests: [Test; 7] = [
        ("replayed and hostile descriptors are refused and the next sample arrives", descriptors),
        ("samples outlive subscription, publisher and node", samples_outlive),
        ("a callback may drop its own subscription", dropped_in_callback),
        ("a callback that panics keeps no sample", panics),
        ("async callbacks and those of a worker get every sample in order", async_and_worker),
        ("endpoints that cannot be made leave nothing behind", leaves_nothing),
        ("a node's own arguments apply to both halves", own_arguments),
    ];
    for (name, test) in tests {
        let mut executor = Context::default_from_env().unwrap().create_basic_executor();
        test(&mut executor);
        println!("ok {name}");
    }
}

/// Spins until the condition holds.
fn until(executor: &mut Executor, what: &str, is_so: impl Fn() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < LONG, "{what}");
        executor.spin(SpinOptions::spin_once().timeout(Duration::from_millis(5)));
    }
}

fn image() -> Image {
    Image::new(4, 2, Encoding::Mono8).unwrap()
}

fn kept<T: Send + 'static>() -> (Seen<T>, impl Fn(T) + Send + Sync + 'static) {
    let seen = Seen::default();
    let in_callback = seen.clone();
    (seen, move |what| in_callback.lock().unwrap().push(what))
}

/// A publisher that has `subscriptions`.
fn publisher(executor: &mut Executor, node: &Node, topic: &str, subscriptions: usize) -> Publisher<Image> {
    let publisher = Publisher::new(node, topic.keep_last(100)).unwrap();
    until(executor, "the nodes do not find each other", || {
        publisher.descriptors().publisher().get_subscription_count().unwrap() >= subscriptions
    });
    publisher
}

fn is_layered() -> bool {
    std::env::var("RMW_IMPLEMENTATION").is_ok_and(|name| name == "rmw_rgaps")
}

fn descriptors(executor: &mut Executor) {
    let node = executor.create_node("descriptors").unwrap();
    let (seen, keep) = kept::<Sample<Image>>();
    let subscription = Subscription::new(&node, "descriptors".keep_last(100), keep).unwrap();
    let publisher = publisher(executor, &node, "descriptors", 1);
    let handle = publisher.push(image(), &[1; 8]).unwrap();
    until(executor, "a sample", || !seen.lock().unwrap().is_empty());
    seen.lock().unwrap().clear();
    let mut lies = vec![handle, MessageHandle { host_epoch: handle.host_epoch - 1, ..handle }];
    lies.push(MessageHandle { generation: handle.generation + 1, sequence: 9, ..handle });
    lies.push(MessageHandle { sequence: u64::MAX, ..handle });
    lies.push(MessageHandle { sequence: 0, position: u64::MAX, entry: u32::MAX, ..handle });
    lies.push(MessageHandle { kind: 3, ..handle });
    lies.push(MessageHandle { layout_version: 0, ..handle });
    lies.push(MessageHandle::from_bytes(&[0xff; MessageHandle::BYTES]));
    let mut sent = 0;
    for lie in &lies {
        // rmw_rgaps already refuses to publish them.
        let published = publisher.descriptors().publisher().publish(GpuImage::new(lie, &image()));
        assert!(published.is_ok() || is_layered(), "{lie:?}");
        sent += u64::from(published.is_ok() && !is_layered());
    }
    until(executor, "refusals", || subscription.refused() + subscription.early() >= sent);
    let last = publisher.push(image(), &[2; 8]).unwrap();
    until(executor, "the sample after them", || !seen.lock().unwrap().is_empty());
    assert_eq!(seen.lock().unwrap()[0].handle(), last);
    assert_eq!(subscription.statistics().lost, 0);
}

fn samples_outlive(executor: &mut Executor) {
    let node = executor.create_node("outlived").unwrap();
    let (seen, keep) = kept::<Sample<Image>>();
    let subscription = Subscription::new(&node, "outlived".keep_last(10), keep).unwrap();
    let publisher = publisher(executor, &node, "outlived", 1);
    publisher.push(image(), &[7; 8]).unwrap();
    until(executor, "a sample", || !seen.lock().unwrap().is_empty());
    drop((subscription, publisher, node));
    assert_eq!(seen.lock().unwrap()[0].bytes(), [7; 8]);
}

fn dropped_in_callback(executor: &mut Executor) {
    let node = executor.create_node("dropped").unwrap();
    let own: Arc<Mutex<Option<Subscription<Image>>>> = Arc::default();
    let (seen, keep) = kept();
    let in_callback = own.clone();
    let made = Subscription::new(&node, "dropped".keep_last(10), move |sample: Sample<Image>| {
        drop(in_callback.lock().unwrap().take());
        keep(sample);
    });
    *own.lock().unwrap() = Some(made.unwrap());
    let publisher = publisher(executor, &node, "dropped", 1);
    publisher.push(image(), &[1; 8]).unwrap();
    until(executor, "the callback", || !seen.lock().unwrap().is_empty());
    until(executor, "the core subscriber's end", || publisher.core().subscriber_count() == 0);
    assert_eq!(seen.lock().unwrap()[0].bytes(), [1; 8]);
}

fn panics(executor: &mut Executor) {
    let node = executor.create_node("panics").unwrap();
    let (seen, keep) = kept();
    let subscription = Subscription::new(&node, "panics".keep_last(10), move |sample: Sample<Image>| {
        keep(sample.handle().sequence);
        panic!("on purpose");
    })
    .unwrap();
    let publisher = publisher(executor, &node, "panics", 1);
    publisher.push(image(), &[1; 8]).unwrap();
    // rclrs propagates the panic, and its executor stops spinning; the sample is released.
    let panicked = catch_unwind(AssertUnwindSafe(|| until(executor, "a panic", || false)));
    let text = panicked.unwrap_err().downcast_ref::<&str>().map(|text| (*text).to_owned());
    assert_eq!(text.as_deref(), Some("on purpose"));
    assert_eq!((seen.lock().unwrap().as_slice(), subscription.statistics().held), (&[1][..], 0));
}

fn async_and_worker(executor: &mut Executor) {
    let node = executor.create_node("kinds").unwrap();
    let (in_async, keep_async) = kept();
    let keep_async = Arc::new(keep_async);
    let first = Subscription::<Image>::new_async(&node, "kinds".keep_last(100), move |sample| {
        let keep = keep_async.clone();
        async move { keep(sample.handle().sequence) }
    })
    .unwrap();
    let worker = node.create_worker(0_u64);
    let (in_worker, keep_worker) = kept();
    let second = Subscription::<Image>::on_worker(&node, &worker, "kinds".keep_last(100), move |count, sample| {
        *count += 1;
        keep_worker((*count, sample.handle().sequence));
    })
    .unwrap();
    let publisher = publisher(executor, &node, "kinds", 2);
    for _ in 0..50 {
        publisher.push(image(), &[1; 8]).unwrap();
    }
    until(executor, "all samples", || in_async.lock().unwrap().len() == 50 && in_worker.lock().unwrap().len() == 50);
    assert_eq!(*in_async.lock().unwrap(), (1..=50).collect::<Vec<_>>());
    assert_eq!(*in_worker.lock().unwrap(), (1..=50).map(|n| (n, n)).collect::<Vec<_>>());
    for subscription in [&first, &second] {
        assert_eq!((subscription.refused(), subscription.statistics().lost), (0, 0));
    }
}

fn leaves_nothing(executor: &mut Executor) {
    let parameters = [
        "rgaps./a.publisher.exhaustion:=never",
        "rgaps./b.subscription.payload_timeout_ms:=-1",
        "rgaps./c.subscription.slack:=many",
    ];
    let arguments = parameters.iter().flat_map(|parameter| ["-p", *parameter]);
    let arguments: Vec<String> = ["--ros-args"].into_iter().chain(arguments).map(str::to_owned).collect();
    let node = executor.create_node("nothing".arguments(arguments)).unwrap();
    let watching = Publisher::<Image>::new(&node, "d".keep_last(1)).unwrap();
    let error = Publisher::<Image>::new(&node, "a".keep_last(1)).unwrap_err().to_string();
    assert!(error.contains("wait, drop_oldest or refuse"), "{error}");
    for topic in ["b", "c"] {
        let error = Subscription::<Image>::new(&node, topic.keep_last(1), drop).unwrap_err().to_string();
        assert!(error.contains("parameter rgaps./"), "{error}");
    }
    let error = Subscription::<Tensor>::new(&node, "d".keep_last(1), drop).unwrap_err().to_string();
    assert!(error.contains("Image"), "{error}");
    for name in ["", "bad name!", "a//b", "~x\0"] {
        assert!(Subscription::<Image>::new(&node, name.keep_last(1), drop).is_err(), "{name:?}");
        assert!(Publisher::<Image>::new(&node, name.keep_last(1)).is_err(), "{name:?}");
    }
    assert_eq!(watching.core().subscriber_count(), 0);
    for (topic, publishers) in [("/a", 0), ("/b", 0), ("/c", 0), ("/d", 1)] {
        until(executor, topic, || {
            node.count_publishers(topic).unwrap() == publishers && node.count_subscriptions(topic).unwrap() == 0
        });
    }
}

fn own_arguments(executor: &mut Executor) {
    let arguments = ["--ros-args", "-r", "image:=eye", "-r", "__ns:=/left"].map(str::to_owned);
    let node = executor.create_node("own".arguments(arguments)).unwrap();
    let (seen, keep) = kept::<Sample<Image>>();
    let subscription = Subscription::new(&node, "image".keep_last(10), keep).unwrap();
    assert_eq!(subscription.topic_name(), "/left/eye");
    let publisher = publisher(executor, &node, "image", 1);
    assert_eq!(
        (publisher.topic_name(), publisher.core().subscriber_count()),
        ("/left/eye", if is_layered() { 2 } else { 1 })
    );
    publisher.push(image(), &[1; 8]).unwrap();
    until(executor, "a sample", || !seen.lock().unwrap().is_empty());
    assert_eq!((subscription.refused(), subscription.early()), (0, 0));
}
