//! Open hosts find each other without configured addresses.

use crate::world::World;

const MESSAGES: usize = 5;

#[test]
fn open_hosts_without_peers_find_each_other_by_multicast() {
    let Some(mut world) = World::new(2) else { return };
    for name in ["RGAPS_LISTEN", "RGAPS_PEERS", "RGAPS_MULTICAST"] {
        // Empty counts as not set.
        world.set(name, "");
    }
    let folder = world.series("saddle.pcd", MESSAGES);
    let count = MESSAGES.to_string();
    let mut subscriber = world.sub(1, "sub", &["cloud", "--type", "point_cloud", "--keep-all", "--count", &count]);
    let input = ["cloud", "--input", folder.to_str().unwrap(), "--rate", "100", "--wait-for", "1"];
    let mut publisher = world.publish(0, "pub", &input);
    assert_eq!(publisher.summary(&world)["published"], MESSAGES);
    let received = subscriber.summary(&world);
    assert_eq!((&received["taken"], &received["statistics"]["lost"]), (&MESSAGES.into(), &0.into()), "{received}");
}
