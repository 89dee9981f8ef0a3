//! A publisher on a GPU: a kernel writes each picture into a loan, and the CPU never waits for it.
//!
//! `cargo run -p rgaps --example ramp`, and in another terminal `cargo run -p rgaps --example invert`.

mod gpu;

use std::time::Duration;

use cudarc::driver::PushKernelArg;
use gpu::{Gpu, each_pixel};
use rgaps::types::{Encoding, Image, Meta, Stamp};
use rgaps::{Durability, Node, PublisherQos};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let pictures: u32 = std::env::args().nth(1).map_or(Ok(30), |text| text.parse())?;
    let node = Node::new("ramp")?;
    let gpu = Gpu::of(&node, "ramp")?;
    // Latched: a late subscriber gets the last picture.
    let qos = PublisherQos { durability: Durability::TransientLocal, history_depth: 1, ..PublisherQos::default() };
    let publisher = node.publisher_with::<Image>("camera/ramp", qos)?;
    for start in 0..pictures {
        let meta = Image::new(640, 480, Encoding::Mono8)?.with_step(768)?.stamped(Stamp::now());
        let picture = publisher.loan(meta)?;
        let view = picture.view()?;
        // SAFETY: the kernel's arguments; it writes the view's pixels, which are the loan's until its work is done: published behind it.
        unsafe { gpu.stream.launch_builder(&gpu.kernel).arg(&view).arg(&start).launch(each_pixel(&view)) }?;
        let receipt = picture.publish_on(&gpu.order)?;
        println!("published message {} at position {}", receipt.sequence, receipt.position);
        std::thread::sleep(Duration::from_millis(33));
    }
    Ok(())
}
