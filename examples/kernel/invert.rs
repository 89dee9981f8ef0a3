//! A subscriber on a GPU: a kernel reads each picture in place, after the work that writes it. Only the result is copied to the CPU, which
//! checks every pixel.
//!
//! `cargo run -p rgaps --example invert`; ends after the given number of pictures, or when none arrives for ten seconds.

mod gpu;

use std::time::{Duration, Instant};

use cudarc::driver::PushKernelArg;
use gpu::{Gpu, each_pixel};
use rgaps::types::Image;
use rgaps::{Node, Readiness, Sample, Subscriber, TakeError};

/// The next picture, whose pixels the GPU may still be writing.
fn next(subscriber: &Subscriber<Image>, gpu: &Gpu) -> Result<Option<Sample<Image>>, TakeError> {
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(10) {
        if let Some(picture) = subscriber.take_on(&gpu.order)? {
            return Ok(Some(picture));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(None)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let pictures: u32 = std::env::args().nth(1).map_or(Ok(10), |text| text.parse())?;
    let node = Node::new("invert")?;
    let gpu = Gpu::of(&node, "invert")?;
    let subscriber = node.subscriber::<Image>("camera/ramp")?;
    println!("ready");
    for _ in 0..pictures {
        let Some(picture) = next(&subscriber, &gpu)? else {
            return Err("no picture within ten seconds".into());
        };
        let view = picture.view()?;
        let mut negative = gpu.stream.alloc_zeros::<u8>(view.width as usize * view.height as usize)?;
        // SAFETY: the arguments match the kernel. It reads the view's pixels, which stay while the picture is held, and writes as many.
        unsafe { gpu.stream.launch_builder(&gpu.kernel).arg(&view).arg(&mut negative).launch(each_pixel(&view)) }?;
        let negative = gpu.stream.clone_dtoh(&negative)?;
        gpu.stream.synchronize()?;
        let (number, route) = (picture.info().sequence, picture.info().route.name());
        if picture.readiness() != Readiness::Ready {
            println!("picture {number}: never completed");
            continue;
        }
        let pixels = (0..view.height).flat_map(|y| (0..view.width).map(move |x| x + y));
        let wrong = pixels.zip(&negative).filter(|(ramp, found)| !(ramp + number as u32 - 1) as u8 != **found).count();
        if wrong > 0 {
            return Err(format!("picture {number}: {wrong} pixels are wrong").into());
        }
        println!("picture {number}: {} pixels inverted ({route})", negative.len());
    } // dropping the picture releases it after the kernel
    Ok(())
}
