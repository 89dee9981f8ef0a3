//! A camera: publishes pictures that it makes in place, in the memory that subscribers read.
//!
//! `cargo run -p rgaps --example camera`, and in another terminal `cargo run -p rgaps --example brightness`.

use std::time::Duration;

use rgaps::types::{Encoding, Image, Meta, Stamp};
use rgaps::{Durability, Node, PublisherQos};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let pictures: u32 = std::env::args().nth(1).map_or(Ok(30), |text| text.parse())?;
    let node = Node::new("camera")?;
    // Latched: a late subscriber gets the last picture.
    let qos = PublisherQos { durability: Durability::TransientLocal, history_depth: 1, ..PublisherQos::default() };
    let publisher = node.publisher_with::<Image>("camera/front", qos)?;
    for number in 0..pictures {
        let meta = Image::new(640, 480, Encoding::Mono8)?.stamped(Stamp::now()).in_frame("camera_optical")?;
        let mut picture = publisher.loan(meta)?;
        picture.fill(number as u8);
        let receipt = picture.publish()?;
        println!("published message {} at position {}", receipt.sequence, receipt.position);
        std::thread::sleep(Duration::from_millis(33));
    }
    Ok(())
}
