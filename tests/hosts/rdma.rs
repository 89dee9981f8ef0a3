//! Two hosts with RDMA devices: which payloads use RDMA, and what happens when a manager dies. `./dev test-rdma` gives these hosts' namespaces the
//! addresses of two Soft-RoCE devices; elsewhere the tests are ignored.

use std::io::Write;
use std::path::{Path, PathBuf};

use rgaps_testing::CrashPoint;

use crate::world::{Program, World, within_limit};

const MIB: usize = 1 << 20;
/// The largest message here: 64 chunks.
const LARGE_BYTES: usize = 64 * MIB;

fn world() -> World {
    let mut world = World::new(2).unwrap();
    world.set("RGAPS_TRANSPORT", "rdma");
    // Software emulation is slow, and a slow host must not count as dead.
    world.set("RGAPS_KEEP_ALL_TIMEOUT_MS", "20000");
    world.set("RGAPS_PEER_TIMEOUT_MS", "10000");
    world.set("RGAPS_ARRIVAL_POOL_BYTES", "536870912");
    world.set("RGAPS_POOL_BYTES", "536870912");
    world
}

/// A file with an array of this many bytes; each byte follows from its offset.
fn array(world: &World, bytes: usize) -> PathBuf {
    let path = world.folder("arrays").join(format!("{bytes}.npy"));
    let mut header = format!("{{'descr': '|u1', 'fortran_order': False, 'shape': ({bytes},), }}");
    while (10 + header.len() + 1) % 64 != 0 {
        header.push(' ');
    }
    header.push('\n');
    let mut file = std::fs::File::create(&path).unwrap();
    file.write_all(b"\x93NUMPY\x01\x00").unwrap();
    file.write_all(&u16::try_from(header.len()).unwrap().to_le_bytes()).unwrap();
    file.write_all(header.as_bytes()).unwrap();
    let content: Vec<u8> = (0..bytes).map(|i| (i ^ (i >> 8) ^ (i >> 16)) as u8).collect();
    file.write_all(&content).unwrap();
    path
}

fn publisher(world: &World, file: &Path, rate: &str) -> Program {
    let arguments = ["array", "--input", file.to_str().unwrap(), "--rate", rate, "--loop", "--wait-for", "1"];
    world.publish(0, "pub", &[&arguments[..], &["--exhaustion", "drop_oldest"]].concat())
}

fn subscriber(world: &World) -> Program {
    world.sub(1, "sub", &["array", "--type", "tensor", "--verbose"])
}

fn await_link(world: &World, over: &str) {
    let text = format!("connected over {over}");
    world.await_info(0, "array", &text, |info| info["links"].to_string().contains(&text));
}

#[test]
#[ignore = "needs the virtual machine of ./dev test-rdma"]
fn payload_is_sent_by_rdma_and_its_route_says_so() {
    let world = world();
    payload_takes_rdma(&world);
}

#[test]
#[ignore = "needs the virtual machine of ./dev test-rdma"]
fn payload_is_sent_by_rdma_from_staging_too() {
    let mut world = world();
    world.set("RGAPS_STAGING", "always");
    payload_takes_rdma(&world);
}

fn payload_takes_rdma(world: &World) {
    let file = array(world, MIB);
    let mut subscriber = subscriber(world);
    let mut publisher = publisher(world, &file, "20");
    subscriber.await_lines(world, 40);
    await_link(world, "rdma");
    let published = publisher.interrupt(world);
    assert_eq!(published["refused"], 0, "{published}");
    assert!(subscriber.lines().iter().filter(|line| line["sequence"].is_u64()).all(|line| line["route"] == "rdma"));
    subscriber.interrupt_and_account_exactly(world, &published);
    // Only discovery and hand-shake used the interface.
    let received = world.hosts[1].counters().unwrap().received_bytes;
    assert!(received < 20 * MIB as u64, "{received} B came over the network");
}

/// The messages that have arrived at host 1, and those of them that were copied from the ring.
fn arrived(world: &World) -> (u64, u64) {
    let info = world.info(1, "array").expect("the topic is known");
    let links = info["links"].to_string();
    let number_before = |what: &str| {
        let text = links.split(what).next().unwrap_or_default();
        text.rsplit(' ').next().and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{links}"))
    };
    (number_before(" messages, "), number_before(" copied from the ring"))
}

#[test]
#[ignore = "needs the virtual machine of ./dev test-rdma"]
fn large_messages_over_rdma_land_in_the_pool_unless_configured_otherwise() {
    for (landing_bytes, all) in [("65536", false), ("0", true)] {
        let mut world = world();
        world.set("RGAPS_RDMA_LANDING_BYTES", landing_bytes);
        let file = array(&world, 3 * MIB);
        let mut subscriber = subscriber(&world);
        let mut publisher = publisher(&world, &file, "5");
        subscriber.await_lines(&world, 30);
        let (messages, copied) = arrived(&world);
        // The first one goes through the ring, and others may when the machine is slow.
        assert!(
            if all { copied == messages } else { copied >= 1 && copied <= messages / 2 },
            "{copied} of {messages} are copied"
        );
        let published = publisher.interrupt(&world);
        subscriber.interrupt_and_account_exactly(&world, &published);
    }
}

#[test]
#[ignore = "needs the virtual machine of ./dev test-rdma"]
fn a_receiver_killed_in_the_middle_of_a_large_message_is_replaced() {
    is_replaced_after_its_death_at("arrival.chunk", 64 + 32);
}

#[test]
#[ignore = "needs the virtual machine of ./dev test-rdma"]
fn a_receiver_killed_while_others_may_write_its_pool_is_replaced() {
    if std::env::var("RGAPS_RDMA_LANDING_BYTES").is_ok_and(|bytes| bytes == "0") {
        return rgaps_testing::skipped("nothing is granted");
    }
    // The second message is on its way then.
    is_replaced_after_its_death_at("arrival.granted", 3);
}

fn is_replaced_after_its_death_at(point: &str, passage: u32) {
    let mut world = world();
    let file = array(&world, LARGE_BYTES);
    // Managers are started by hand, so that only one has the crash point; the subscriber starts its successor.
    let _sending = world.manager(0, "rgapsd");
    let mut command = world.command_of(1, "rgapsd");
    CrashPoint::new(point).at_passage(passage).arm(&mut command);
    let mut receiving = rgaps_testing::Child::spawn(&mut command).unwrap();
    let ready = within_limit(|| world.dir(1).path().join("rgapsd.sock").exists().then_some(()));
    assert!(ready.is_some(), "{}", world.logs());
    world.set("RGAPS_LOG", "info");
    let mut subscriber = subscriber(&world);
    let mut publisher = publisher(&world, &file, "1");
    let ended = receiving.wait_within(crate::world::LIMIT).unwrap();
    assert_ne!(ended, rgaps_testing::Ended::StillRunning, "the manager dies in its second message\n{}", world.logs());
    let before = subscriber.lines().len();
    subscriber.await_lines(&world, before + 2);
    await_link(&world, "rdma");
    let published = publisher.interrupt(&world);
    subscriber.interrupt_and_account_exactly(&world, &published);
}

#[test]
#[ignore = "needs the virtual machine of ./dev test-rdma"]
fn a_receiver_that_returns_with_another_ring_gets_messages_again() {
    let mut world = world();
    world.set("RGAPS_AUTOSTART", "0");
    let file = array(&world, 3 * MIB);
    let _sending = world.manager(0, "rgapsd");
    let mut receiving = world.manager(1, "rgapsd");
    let ready = within_limit(|| (0..2).all(|host| world.dir(host).path().join("rgapsd.sock").exists()).then_some(()));
    assert!(ready.is_some(), "{}", world.logs());
    let mut subscriber = subscriber(&world);
    let mut publisher = publisher(&world, &file, "5");
    subscriber.await_lines(&world, 5);
    receiving.child.kill().unwrap();
    world.set("RGAPS_RING_BYTES", "4194304");
    world.set("RGAPS_CHUNK_BYTES", "262144");
    let _again = world.manager(1, "rgapsd-again");
    let before = subscriber.lines().len();
    subscriber.await_lines(&world, before + 10);
    await_link(&world, "rdma");
    let published = publisher.interrupt(&world);
    subscriber.interrupt_and_account_exactly(&world, &published);
}

/// Soft-RoCE registers no memory of a GPU. The GPUs are the stand-in for libcuda.
#[test]
#[ignore = "needs the virtual machine of ./dev test-rdma"]
fn where_cards_register_no_gpu_memory_messages_arrive_and_the_doctor_says_why() {
    let mut world = world();
    let folder = world.folder("libcuda");
    rgaps_standin_cuda::link_into(&folder).unwrap();
    world.set("LD_LIBRARY_PATH", folder.to_str().unwrap());
    world.set("RGAPS_DEVICE", "cuda:0");
    world.set("RGAPS_GPU_DIRECT", "true");
    // Also where the tests run without grants: memory that is not granted is not tried.
    world.set("RGAPS_RDMA_LANDING_BYTES", "128KiB");
    world.set("RGAPS_TEST_STANDIN_GPU_DIRECT", "1");
    let file = array(&world, MIB);
    let mut subscriber = subscriber(&world);
    let mut publisher = publisher(&world, &file, "5");
    subscriber.await_lines(&world, 10);
    let refused = |card: &str| format!("({card} cannot use memory of the GPU: ibv_reg_dmabuf_mr of 2097152 B failed: ");
    for (host, over) in [(0, "rdma, from staging "), (1, "rdma, through the ring ")] {
        let cards = ["rxe_a", "rxe_b"].map(|card| format!("connected over {over}{}", refused(card)));
        world.await_info(host, "array", over, |info| cards.iter().any(|text| info["links"].to_string().contains(text)));
    }
    let (messages, copied) = arrived(&world);
    assert!(messages >= 10 && copied == messages, "{copied} of {messages} are copied");
    let published = publisher.interrupt(&world);
    subscriber.interrupt_and_account_exactly(&world, &published);
    let output = world.command_of(0, "rgaps").args(["doctor", "--json"]).output().unwrap();
    let findings: Vec<serde_json::Value> = serde_json::from_slice(&output.stdout).unwrap();
    let finding = findings.iter().find(|finding| finding["what"] == "GPUDirect RDMA").unwrap();
    let found = finding["found"].as_str().unwrap();
    for card in ["rxe_a", "rxe_b"] {
        assert!(found.contains(&format!("cuda:0: {card} cannot use memory of the GPU")), "{found}");
    }
    assert!(
        finding["verdict"] == "limited" && found.contains("its driver registers no memory of other devices"),
        "{found}"
    );
}
