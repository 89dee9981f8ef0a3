//! An rclrs node that finds the edges of the images of `image_rect` (mono8) with Sobel's operator, and publishes them on `edges`: the same bytes as
//! ../../pipelines/src/edges.cpp. It works on the CPU: if the pools are in GPU memory, it reads a copy of the image, which is counted.

use std::error::Error;
use std::time::Duration;

use rclrs::{Context, CreateBasicExecutor, IntoPrimitiveOptions, RclrsErrorFilter, SpinOptions, ToLogParams};
use rgaps::Sample;
use rgaps::types::{Encoding, Image, Meta};
use rgaps_ros::rclrs::{Publisher, Subscription};

type Failed = Box<dyn Error + Send + Sync>;

fn main() -> Result<(), Failed> {
    let mut executor = Context::default_from_env()?.create_basic_executor();
    let node = executor.create_node("edges")?;
    let publisher = Publisher::<Image>::new(&node, "edges".keep_last(10))?;
    let name = node.name();
    let _pictures = Subscription::<Image>::new(&node, "image_rect".keep_last(10), move |picture| {
        if let Err(error) = publish_edges(&publisher, &picture) {
            rclrs::log_error!(name.as_str().throttle(Duration::from_secs(1)), "a picture is left out: {error}");
        }
    })?;
    executor.spin(SpinOptions::default()).first_error()?;
    Ok(())
}

fn publish_edges(publisher: &Publisher<Image>, picture: &Sample<Image>) -> Result<(), Failed> {
    let from = picture.meta();
    if from.encoding != Encoding::Mono8 {
        return Err(format!("the encoding is {}, not mono8", from.encoding.name()).into());
    }
    // The same stamp and coordinate frame.
    let meta = Image::new(from.width, from.height, Encoding::Mono8)?
        .stamped(from.header.stamp)
        .in_frame(from.header.frame_id.as_str())?;
    let mut edges = publisher.loan(meta)?;
    let (columns, step) = (from.width as usize, from.step as usize);
    let rows: Vec<&[u8]> = picture.to_host()?.chunks(step).map(|row| &row[..columns]).collect();
    for (y, to) in edges.chunks_exact_mut(columns).enumerate() {
        // Outside the image, its border pixels repeat.
        let (above, below) = (rows[y.saturating_sub(1)], rows[(y + 1).min(rows.len() - 1)]);
        sobel(above, rows[y], below, to);
    }
    edges.publish()?;
    Ok(())
}

/// A row of edges: |gx| + |gy|, at most 255.
fn sobel(above: &[u8], here: &[u8], below: &[u8], to: &mut [u8]) {
    let last = here.len() - 1;
    for (x, edge) in to.iter_mut().enumerate() {
        let (left, right) = (x.saturating_sub(1), (x + 1).min(last));
        let [a, h, b] = [above, here, below].map(|row| [left, x, right].map(|column| i32::from(row[column])));
        let gx = a[2] + 2 * h[2] + b[2] - a[0] - 2 * h[0] - b[0];
        let gy = b[0] + 2 * b[1] + b[2] - a[0] - 2 * a[1] - a[2];
        *edge = (gx.abs() + gy.abs()).min(255) as u8;
    }
}
