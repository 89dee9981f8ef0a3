//! Messages of every kind between languages: the same program as exchange.c, exchange.cpp and exchange.py, which can read its messages.
//!
//! `cargo run -p rgaps --example exchange -- pub|sub bytes|image|point_cloud|tensor TOPIC COUNT`

use std::error::Error;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rgaps::dynamic::{DynamicMeta, DynamicPublisher, DynamicSubscriber, Kind};
use rgaps::types::{Bytes, DType, Datatype, Encoding, Image, MetaError, PointCloud, Stamp, Tensor, Text};
use rgaps::{Node, PublisherQos, SubscriberQos};

const WAIT: Duration = Duration::from_secs(10);

/// The metadata of message `n`.
fn described(kind: Kind, n: i32) -> Result<DynamicMeta, MetaError> {
    let fields = ["x", "y", "z", "intensity"].map(|name| (name, Datatype::Float32));
    let mut meta: DynamicMeta = match kind {
        Kind::Bytes => Bytes::new(1000).into(),
        Kind::Image => Image::new(64, 48, Encoding::Rgb8)?.into(),
        Kind::PointCloud => PointCloud::packed(100, &fields)?.into(),
        Kind::Tensor => Tensor::new(DType::FLOAT32, &[2, 3, 4])?.into(),
    };
    meta.header_mut().stamp = Stamp { sec: n, nanosec: 0 };
    meta.header_mut().frame_id = Text::new("frame_id", "exchange")?;
    Ok(meta)
}

/// Byte `at` of the payload of message `n`.
fn content(kind: Kind, n: i32, at: usize) -> u8 {
    match kind {
        Kind::Bytes | Kind::Image => (at * 7 + n as usize) as u8,
        Kind::PointCloud | Kind::Tensor => ((at / 4) as f32 + n as f32).to_le_bytes()[at % 4],
    }
}

fn publish(node: &Node, kind: Kind, topic: &str, count: i32) -> Result<(), Box<dyn Error>> {
    let publisher = DynamicPublisher::new(node, topic, kind, PublisherQos::default())?;
    let deadline = Instant::now() + WAIT;
    while publisher.subscriber_count() == 0 && Instant::now() < deadline {
        sleep(Duration::from_millis(1));
    }
    for n in 0..count {
        let mut loan = publisher.loan(&described(kind, n)?)?;
        for (at, byte) in loan.bytes_mut().iter_mut().enumerate() {
            *byte = content(kind, n, at);
        }
        loan.publish()?;
    }
    println!("published {count} {kind} messages");
    while publisher.statistics().outstanding > 0 && Instant::now() < deadline {
        sleep(Duration::from_millis(1));
    }
    Ok(())
}

fn subscribe(node: &Node, kind: Kind, topic: &str, count: i32) -> Result<(), Box<dyn Error>> {
    let subscriber = DynamicSubscriber::new(node, topic, kind, SubscriberQos::default())?;
    println!("ready");
    for n in 0..count {
        let Some(message) = subscriber.wait(WAIT)? else {
            return Err("no message within ten seconds".into());
        };
        if message.meta() != described(kind, n)? {
            return Err(format!("message {n} has other metadata: {:?}", message.meta()).into());
        }
        let wrong = message.to_host()?.iter().enumerate().find(|(at, byte)| **byte != content(kind, n, *at));
        if let Some((at, byte)) = wrong {
            return Err(format!("message {n} has {byte} at byte {at}").into());
        }
    } // the message is released here
    println!("took {count} {kind} messages");
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [what, kind, topic, count] = arguments.as_slice() else {
        return Err("usage: exchange pub|sub bytes|image|point_cloud|tensor TOPIC COUNT".into());
    };
    let (kind, count, node) = (kind.parse()?, count.parse()?, Node::new("exchange")?);
    match what.as_str() {
        "pub" => publish(&node, kind, topic, count),
        "sub" => subscribe(&node, kind, topic, count),
        other => Err(format!("'{other}' is neither pub nor sub").into()),
    }
}
