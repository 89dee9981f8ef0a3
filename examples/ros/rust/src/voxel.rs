//! An rclrs node that thins point clouds: keeps the first point in each cube of a grid. Reads each cloud in place, on `points`, and writes the result
//! into a loan, on `points/filtered`.

use std::collections::HashSet;
use std::error::Error;

use rclrs::{Context, CreateBasicExecutor, IntoPrimitiveOptions, RclrsErrorFilter, SpinOptions};
use rgaps::Sample;
use rgaps::types::PointCloud;
use rgaps_ros::rclrs::{Publisher, Subscription};

mod cubes;

fn main() -> Result<(), Box<dyn Error>> {
    let mut executor = Context::default_from_env()?.create_basic_executor();
    let node = executor.create_node("voxel")?;
    let description = "Edge length of a cube, in metres.";
    let cube = node.declare_parameter::<f64>("cube").default(0.1).description(description).read_only()?.get();
    let publisher = Publisher::<PointCloud>::new(&node, "points/filtered".keep_last(10))?;
    let name = node.name();
    let _points = Subscription::<PointCloud>::new(&node, "points".keep_last(10), move |cloud| {
        match thin(&cloud, cube, &publisher) {
            Ok(kept) => rclrs::log_info!(name.as_str(), "{kept} of {} points", cloud.meta().points()),
            Err(error) => rclrs::log_error!(name.as_str(), "{error}"),
        }
    })?;
    executor.spin(SpinOptions::default()).first_error()?;
    Ok(())
}

fn thin(cloud: &Sample<PointCloud>, cube: f64, publisher: &Publisher<PointCloud>) -> Result<usize, Box<dyn Error>> {
    let (meta, mut taken) = (cloud.meta(), HashSet::new());
    let kept: Vec<&[u8]> = cubes::points(meta, cloud.bytes())
        .filter_map(|(bytes, place)| taken.insert(cubes::cube(place?, cube)).then_some(bytes))
        .collect();
    let mut thinned = PointCloud::new(u32::try_from(kept.len())?, 1, meta.point_step, meta.fields())?;
    thinned.header = meta.header;
    let mut loan = publisher.loan(thinned)?;
    loan.chunks_exact_mut(meta.point_step as usize).zip(&kept).for_each(|(to, from)| to.copy_from_slice(from));
    loan.publish()?;
    Ok(kept.len())
}
