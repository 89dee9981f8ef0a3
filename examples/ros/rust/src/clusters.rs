//! An rclrs node that counts the clusters of a point cloud: cubes of a grid that touch belong to one cluster. Takes clouds from `points/filtered`,
//! and publishes the count, an int32, on `clusters`.

use std::collections::HashSet;
use std::error::Error;

use rclrs::{Context, CreateBasicExecutor, IntoPrimitiveOptions, RclrsErrorFilter, SpinOptions};
use rgaps::Sample;
use rgaps::types::{DType, PointCloud, Tensor};
use rgaps_ros::rclrs::{Publisher, Subscription};

mod cubes;

fn main() -> Result<(), Box<dyn Error>> {
    let mut executor = Context::default_from_env()?.create_basic_executor();
    let node = executor.create_node("clusters")?;
    let description = "Points nearer than this belong to one cluster, in metres.";
    let tolerance = node.declare_parameter::<f64>("tolerance").default(0.5).description(description).read_only()?.get();
    let publisher = Publisher::<Tensor>::new(&node, "clusters".keep_last(10))?;
    let name = node.name();
    let _points = Subscription::<PointCloud>::new(&node, "points/filtered".keep_last(10), move |cloud| {
        let clusters = count(&cloud, tolerance);
        let mut tensor = match Tensor::new(DType::INT32, &[1]) {
            Ok(tensor) => tensor,
            Err(error) => return rclrs::log_error!(name.as_str(), "{error}"),
        };
        tensor.header = cloud.meta().header;
        match publisher.push(tensor, &clusters.to_le_bytes()) {
            Ok(_) => rclrs::log_info!(name.as_str(), "{clusters} clusters"),
            Err(error) => rclrs::log_error!(name.as_str(), "{error}"),
        }
    })?;
    executor.spin(SpinOptions::default()).first_error()?;
    Ok(())
}

fn count(cloud: &Sample<PointCloud>, tolerance: f64) -> i32 {
    let places = cubes::points(cloud.meta(), cloud.bytes()).filter_map(|(_, place)| place);
    let mut left: HashSet<[i64; 3]> = places.map(|place| cubes::cube(place, tolerance)).collect();
    let mut clusters = 0;
    while let Some(&first) = left.iter().next() {
        clusters += 1;
        left.remove(&first);
        let mut open = vec![first];
        while let Some(cube) = open.pop() {
            open.extend(neighbours(cube).filter(|neighbour| left.remove(neighbour)));
        }
    }
    clusters
}

/// The 26 cubes around one.
fn neighbours(cube: [i64; 3]) -> impl Iterator<Item = [i64; 3]> {
    let steps = (0..27).map(|number| [number % 3 - 1, number / 3 % 3 - 1, number / 9 - 1]);
    steps.filter(|step| *step != [0; 3]).map(move |step| [cube[0] + step[0], cube[1] + step[1], cube[2] + step[2]])
}
