//! The payloads of `rosidl::Buffer` between hosts. The test is the middleware, which carries descriptors.

use rgaps::Node;
use rgaps_ros_policy::buffers::{Buffers, Gid};

use crate::world::{World, within_limit};

const BYTES: u64 = 1_000_000;

fn process(world: &World, host: usize) -> Buffers {
    Buffers::new(Node::builder().runtime_dir(world.dir(host).path()).no_autostart().build().unwrap())
}

fn gid(number: u8) -> Gid {
    Gid([number; 16])
}

#[test]
fn a_payload_goes_to_each_host_once_whatever_the_number_of_subscriptions_there() {
    let Some(world) = World::new(2) else { return };
    let _managers = [0, 1].map(|host| world.manager(host, "rgapsd"));
    let within =
        |host: usize| within_limit(|| Node::builder().runtime_dir(world.dir(host).path()).no_autostart().build().ok());
    assert!(within(0).is_some() && within(1).is_some());
    let camera = process(&world, 0);
    drop(camera.allocate(1).unwrap());
    // Two subscriptions of a process on the publisher's host, and three of two processes on the other host.
    let viewers = [(1, process(&world, 0)), (2, process(&world, 0)), (3, process(&world, 1)), (4, process(&world, 1))];
    let mut others = Vec::new();
    for (number, viewer) in viewers.iter().chain([&(5, viewers[3].1.clone())]) {
        viewer.subscription_created(gid(*number), None).unwrap();
        assert!(camera.subscription_discovered(gid(*number), &viewer.metadata(), &others));
        others.push(gid(*number));
    }
    let numbers = [1, 2, 3, 4, 5];
    let viewer_of = |number: u8| viewers.iter().find(|(of, _)| *of == number.min(4)).map(|(_, viewer)| viewer).unwrap();
    assert!(within_limit(|| (camera.statistics().reached == 5).then_some(())).is_some(), "{}", world.logs());
    let mut fill = 0_u8;
    let mut publish = || {
        fill += 1;
        let buffer = camera.allocate(BYTES).unwrap();
        buffer.copy_in(&vec![fill; BYTES as usize]).unwrap();
        let descriptors = numbers.map(|number| camera.describe(&buffer, gid(number)).unwrap());
        for (number, descriptor) in numbers.iter().zip(&descriptors) {
            let received = viewer_of(*number).receive(descriptor).to_vec().unwrap();
            assert!(received.len() as u64 == BYTES && received.iter().all(|byte| *byte == fill), "{number}");
        }
        descriptors
    };
    // At first one message for each. Then the later ones have joined the topic of the first, while not one payload was lost.
    let first = publish();
    assert!(first.iter().all(|descriptor| descriptor.topic == descriptor.subscription));
    let has_joined = within_limit(|| {
        let descriptors = publish();
        (descriptors[3].topic == gid(3) && descriptors[4].topic == gid(3)).then_some(())
    });
    assert!(has_joined.is_some(), "{}", world.logs());
    // Another publishing process, for which they join, too.
    let second = process(&world, 0);
    drop(second.allocate(1).unwrap());
    for (at, number) in numbers.iter().enumerate() {
        assert!(second.subscription_discovered(gid(*number), &viewer_of(*number).metadata(), &others[..at]));
    }
    assert!(within_limit(|| (second.statistics().reached == 5).then_some(())).is_some(), "{}", world.logs());
    let has_joined = within_limit(|| {
        let buffer = second.allocate(BYTES).unwrap();
        buffer.copy_in(&vec![7; BYTES as usize]).unwrap();
        let descriptors = [3, 4, 5].map(|number| second.describe(&buffer, gid(number)).unwrap());
        let received =
            [3, 4, 5].iter().zip(&descriptors).map(|(number, of)| viewer_of(*number).receive(of).to_vec().unwrap());
        assert!(received.into_iter().all(|bytes| bytes == vec![7; BYTES as usize]));
        descriptors.iter().all(|of| of.topic == gid(3)).then_some(())
    });
    assert!(has_joined.is_some(), "{}", world.logs());
    let before = world.hosts[1].counters().unwrap();
    for _ in 0..10 {
        let descriptors = publish();
        assert_eq!(descriptors.map(|descriptor| descriptor.topic), [1, 2, 3, 3, 3].map(gid));
        assert_eq!(descriptors[3].handle, descriptors[4].handle);
    }
    let moved = (world.hosts[1].counters().unwrap() - before).received_bytes;
    assert!((10 * BYTES..10 * BYTES + BYTES).contains(&moved), "{moved} B for 10 payloads of {BYTES} B");
    let all: Vec<_> = viewers.iter().map(|(_, viewer)| viewer.statistics()).collect();
    assert!(all.iter().all(|of| of.refused == 0 && of.copied == 0), "{all:?}");
    assert_eq!((camera.statistics().copied, camera.statistics().as_bytes), (0, 0));
}
