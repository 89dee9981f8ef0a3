//! Data land where subscribers read them, or go through the ring if they must.

use rgaps_link::tcp::HELLO_BYTES;
use rgaps_testing::{Swap, Toward};

use super::unsent::{NEWCOMER, Newcomer};
use super::*;

#[test]
fn data_over_tcp_land_in_the_pool_and_are_copied_nowhere_else() {
    let mut pair = Pair::new(host(), 20, 60_000);
    let mut subscriber = pair.subscriber();
    pair.announce(true);
    for bytes in [1, 0, 7 << 10, 100_000, 8 << 10, 200_000, 5] {
        pair.send(bytes);
        let held = subscriber.take();
        pair.check(&held);
        assert_eq!(held.info().copies.pooled, 0, "{bytes} B");
    }
}

#[test]
fn data_go_through_the_ring_while_their_message_waits_for_space() {
    let mut pair = Pair::new(host(), 20, 60_000);
    let mut subscriber = pair.subscriber();
    pair.announce(true);
    let refused = |pair: &Pair| {
        let to = pair.to();
        let slot = to.topic.inbound.get(&FROM).and_then(Inbound::slot);
        slot.map_or(0, |slot| to.topic.segment.publisher(slot.index).unwrap().refused.load(Ordering::Relaxed))
    };
    let mut held = Vec::new();
    while held.len() as u64 == pair.sequence {
        pair.send(200_000);
        until("a message, or one that waits for space", || {
            held.extend(subscriber.reader.take().unwrap());
            held.len() as u64 == pair.sequence || refused(&pair) > 0
        });
    }
    assert!(held.iter().all(|held| held.info().copies.pooled == 0));
    held.truncate(1);
    let late = subscriber.take();
    pair.check(&late);
    assert_eq!((late.info().sequence, late.info().copies.pooled), (pair.sequence, 1));
    held.iter().for_each(|held| pair.check(held));
    drop(late);
    pair.send(200_000);
    assert_eq!((subscriber.take().info().copies.pooled, subscriber.lost()), (0, 0));
}

#[test]
fn data_for_memory_of_a_device_go_through_the_ring() {
    let mut pair = Pair::between(host(), Arc::new(DeferredBackend::default()), 20, 60_000);
    let mut subscriber = pair.subscriber();
    pair.announce(true);
    pair.send(100_000);
    let held = subscriber.take();
    pair.check(&held);
    assert_eq!(held.info().copies.pooled, 1);
}

#[test]
fn what_the_sender_overwrites_in_the_ring_is_discarded_and_counted() {
    let late = DeferredBackend::default();
    let mut pair = Pair::between(host(), Arc::new(late.clone()), 60, 60_000);
    for publisher in pair.topic.publishers.values_mut() {
        publisher.qos.flow_control = false;
    }
    let mut subscriber = pair.subscriber();
    pair.announce(true);
    pair.send(100);
    assert_eq!(subscriber.sequences_to(1), [1]);
    // Many rings, and more than the sockets hold, while no copy is made. The sender waits for nobody.
    late.stall();
    for batch in 1..=100 {
        (0..20).for_each(|_| pair.send(8000));
        until("that all are sent", || pair.status().contains(&format!(" {} messages sent", 20 * batch + 1)));
    }
    late.go_on();
    pair.send(100);
    let mut taken = 0;
    loop {
        let held = subscriber.take();
        pair.check(&held);
        taken += 1;
        if held.info().sequence == 2002 {
            break;
        }
    }
    assert_eq!(taken + subscriber.lost(), 2001);
    let status = pair.to().topic.inbound[&FROM].status();
    assert!(!status.contains(" 0 torn"), "{status}");
}

/// A new publisher's first eight messages were skipped. Its next one says so in its envelope, and the first record that does is damaged.
#[test]
fn a_damaged_envelope_of_a_first_record_hides_no_loss() {
    let mut pair = Pair::new(host(), 2, 60_000);
    let proxy = corruption::put_proxy_between(&pair);
    let mut subscriber = pair.subscriber();
    pair.announce(true);
    pair.send(100);
    assert_eq!(subscriber.sequences_to(1), [1]);
    pair.cut();
    let mut newcomer = Newcomer::join(&pair, NEWCOMER);
    newcomer.send(&pair, 10);
    // The envelope's `previous`, behind the header and its sum.
    proxy.order(Swap { toward: Toward::Listener, after: HELLO_BYTES as u64 + 64 + 4 + 72, apart: 2 });
    pair.mend();
    assert_eq!(subscriber.sequences_to(10), [9, 10]);
    assert_eq!(proxy.swaps(), 1);
    until("the losses", || subscriber.lost() == 8);
}
