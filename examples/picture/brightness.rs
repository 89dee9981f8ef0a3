//! A subscriber: takes pictures and computes their mean brightness in place.
//!
//! `cargo run -p rgaps --example brightness`; ends after the given number of pictures, or when none arrives for ten seconds.

use std::time::Duration;

use rgaps::Node;
use rgaps::types::Image;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let pictures: u32 = std::env::args().nth(1).map_or(Ok(10), |text| text.parse())?;
    let node = Node::new("brightness")?;
    let subscriber = node.subscriber::<Image>("camera/front")?;
    println!("ready");
    for _ in 0..pictures {
        let Some(picture) = subscriber.wait(Duration::from_secs(10))? else {
            return Err("no picture within ten seconds".into());
        };
        let sum: u64 = picture.bytes().iter().map(|byte| u64::from(*byte)).sum();
        let mean = sum as f64 / picture.bytes().len() as f64;
        println!("picture {}: {:.1} ({})", picture.info().sequence, mean, picture.info().route.name());
    } // the picture is released here
    Ok(())
}
