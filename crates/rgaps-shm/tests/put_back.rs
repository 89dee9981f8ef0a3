//! Messages that are put back, on a real segment in one process.

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions

mod host;

use std::collections::BTreeSet;

use host::{Host, sequences};
use rgaps_shm::reader::port::TakeRefused;
use rgaps_shm::reader::seen_publishers::{MessageName, TakenByName};
use rgaps_shm::{Exhaustion, Held, ReaderPort};

#[test]
fn a_message_put_back_is_next_and_is_counted_once() {
    let host = Host::new(64);
    let mut publisher = host.publisher(1 << 20, 0);
    let mut reader = host.subscriber(0);
    for _ in 0..3 {
        publisher.publish(10, Exhaustion::Refuse).unwrap();
    }
    let (first, second) = (reader.take().unwrap().unwrap(), reader.take().unwrap().unwrap());
    // In another order than they were taken.
    reader.put_back(second);
    reader.put_back(first);
    assert_eq!((reader.counters().taken, reader.ready_count(10).ready), (0, 3));
    assert_eq!(sequences(&mut reader), [1, 2, 3]);
    let counters = reader.counters();
    assert_eq!((counters.taken, counters.lost, counters.held), (3, 0, 0));
}

#[test]
fn a_message_put_back_is_lost_by_the_depth_and_by_handles_in_order() {
    let host = Host::new(64);
    let mut publisher = host.publisher(1 << 20, 0);
    let mut reader = host.subscriber(2);
    let mut in_order = host.subscriber(10);
    in_order.expect_handles_in_order();
    publisher.publish(10, Exhaustion::Refuse).unwrap();
    let held = reader.take().unwrap().unwrap();
    let first = MessageName::of(held.info());
    reader.put_back(held);
    let TakenByName::Here(held) = in_order.take_by_name(first).unwrap() else { panic!("it is there") };
    in_order.put_back(held);
    for _ in 0..2 {
        publisher.publish(10, Exhaustion::Refuse).unwrap();
    }
    assert_eq!(sequences(&mut reader), [2, 3]);
    assert_eq!((reader.counters().taken, reader.counters().lost, reader.counters().held), (2, 1, 0));
    let second = MessageName { sequence: first.sequence + 1, ..first };
    assert!(matches!(in_order.take_by_name(second).unwrap(), TakenByName::Here(_)));
    assert_eq!((in_order.counters().taken, in_order.counters().lost, in_order.counters().held), (1, 1, 0));
}

#[test]
fn a_message_put_back_and_then_poisoned_is_counted_as_taken() {
    let host = Host::new(64);
    let mut publisher = host.publisher(1 << 20, 0);
    for is_on_stream in [false, true] {
        let mut reader = host.subscriber(0);
        let bytes = publisher.publish_pending();
        let held = reader.take_pending().unwrap().unwrap();
        reader.put_back(held);
        assert!(bytes.poison());
        let taken = if is_on_stream { reader.take_pending() } else { reader.take() };
        assert!(taken.unwrap().is_none());
        let counters = reader.counters();
        assert_eq!((counters.taken, counters.poisoned, counters.lost, counters.held), (1, 1, 0, 0), "{is_on_stream}");
    }
}

fn name(sequence: u64) -> MessageName {
    MessageName { publisher: 77, sequence }
}

fn take_and_put_back(reader: &mut ReaderPort, sequence: u64) {
    let TakenByName::Here(held) = reader.take_by_name(name(sequence)).unwrap() else { panic!("{sequence} is there") };
    reader.put_back(held);
}

#[test]
fn messages_are_taken_however_many_others_are_put_back_out_of_turn() {
    // More than a reader sets aside, and half of a publisher's entries.
    for (messages, published, put_back) in [(256, 70, 2..=65), (4, 4, 2..=3)] {
        let host = Host::new(messages);
        let mut publisher = host.publisher(1 << 20, 0);
        let (mut reader, mut on_stream) = (host.subscriber(0), host.subscriber(0));
        for _ in 0..published {
            publisher.publish(10, Exhaustion::Refuse).unwrap();
        }
        for sequence in put_back {
            take_and_put_back(&mut reader, sequence);
            take_and_put_back(&mut on_stream, sequence);
        }
        assert_eq!(reader.ready_count(1000).ready as u64, published);
        assert_eq!(sequences(&mut reader), (1..=published).collect::<Vec<_>>());
        let taken = std::iter::from_fn(|| on_stream.take_pending().unwrap().map(|held| held.info().sequence));
        assert_eq!(taken.collect::<Vec<_>>(), (1..=published).collect::<Vec<_>>());
        let counters = reader.counters();
        assert_eq!((counters.taken, counters.lost, counters.held), (published, 0, 0));
    }
}

#[test]
fn messages_put_back_do_not_raise_the_limit_of_held_messages() {
    let host = Host::new(4);
    let mut publisher = host.publisher(1 << 20, 0);
    let mut reader = host.subscriber(0);
    for _ in 0..4 {
        publisher.publish(10, Exhaustion::Refuse).unwrap();
    }
    take_and_put_back(&mut reader, 2);
    take_and_put_back(&mut reader, 3);
    let refused = |held| matches!(held, Err(TakeRefused::TooManyHeld { held: 2, .. }));
    assert!(
        refused(reader.take_by_name(name(4)).map(|_| ())),
        "with the messages put back, it would hold more than half"
    );
    let mut held = vec![reader.take().unwrap().unwrap(), reader.take().unwrap().unwrap()];
    assert_eq!(held.iter().map(|held| held.info().sequence).collect::<Vec<_>>(), [1, 2]);
    assert!(refused(reader.take().map(|_| ())) && refused(reader.take_pending().map(|_| ())));
    assert!(refused(reader.take_by_name(name(3)).map(|_| ())) && reader.ready_count(10).ready == 0);
    held.clear();
    assert_eq!((reader.ready_count(10).ready, sequences(&mut reader)), (2, vec![3, 4]));
}

#[test]
fn a_message_put_back_and_too_old_does_not_count_as_ready() {
    let host = Host::new(64);
    let mut publisher = host.publisher(1 << 20, 0);
    let mut reader = host.subscriber(2);
    publisher.publish(10, Exhaustion::Refuse).unwrap();
    let held = reader.take().unwrap().unwrap();
    reader.put_back(held);
    for _ in 0..2 {
        publisher.publish(10, Exhaustion::Refuse).unwrap();
    }
    assert_eq!((reader.ready_count(10).ready, sequences(&mut reader)), (2, vec![2, 3]));
}

#[test]
fn a_message_put_back_has_its_turn_when_history_before_it_is_gone() {
    let host = Host::new(64);
    let mut publisher = host.publisher(1 << 20, 1);
    publisher.publish(10, Exhaustion::Refuse).unwrap();
    let mut readers = [host.subscriber_with(3, true), host.subscriber_with(3, true)];
    for reader in &mut readers {
        assert_eq!(reader.ready_count(10).ready, 1, "the message from history");
    }
    for sequence in 2..=3 {
        assert_eq!(publisher.publish(10, Exhaustion::Refuse), Ok(sequence));
    }
    for reader in &mut readers {
        take_and_put_back(reader, 2);
    }
    publisher.publish(10, Exhaustion::Refuse).unwrap();
    let [mut reader, mut on_stream] = readers;
    assert_eq!(sequences(&mut reader), [2, 3, 4]);
    let taken = std::iter::from_fn(|| on_stream.take_pending().unwrap().map(|held| held.info().sequence));
    assert_eq!(taken.collect::<Vec<_>>(), [2, 3, 4]);
}

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// Random takes in order and by name, put-backs and drops. Every message is given out once or counted as lost, and `ready_count` agrees with the
/// takes.
fn walk_randomly(seed: u64) {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let messages = [4, 8, 64, 256][random.below(4) as usize];
    let host = Host::new(messages);
    let history = if random.below(2) == 0 { 0 } else { 3 };
    let mut publishers = [host.publisher(1 << 20, history), host.publisher(1 << 20, history)];
    // Two publishers of different identities.
    publishers[1].sequence = 1_000_000;
    for _ in 0..random.below(6) {
        let which = random.below(2) as usize;
        let _ = publishers[which].publish(10, Exhaustion::DropOldest);
    }
    let before: Vec<u64> = publishers.iter().map(|publisher| publisher.sequence).collect();
    let depth = [0, 1, 3, 10, 100][random.below(5) as usize];
    let wants_history = random.below(2) == 0;
    let mut reader = host.subscriber_with(depth, wants_history);
    let from_history = reader.ready_count(1000).ready as u64;
    let in_order = random.below(4) == 0;
    if in_order {
        reader.expect_handles_in_order();
    }
    let mut held: Vec<Held> = Vec::new();
    let mut given: BTreeSet<(u16, u64)> = Default::default();
    let mut log = Vec::new();
    for step in 0..random.below(300) {
        match random.below(10) {
            0..4 => {
                let which = random.below(2) as usize;
                let exhaustion = if random.below(2) == 0 { Exhaustion::DropOldest } else { Exhaustion::Refuse };
                let done = publishers[which].publish(10, exhaustion).ok();
                log.push(format!("publish {which} {done:?}"));
            }
            4..6 => match reader.take() {
                Ok(Some(taken)) => {
                    let key = (taken.message().index.0, taken.info().position);
                    assert!(given.insert(key), "seed {seed} step {step}: twice {key:?}\n{log:#?}");
                    log.push(format!("take {:?}", taken.info().sequence));
                    held.push(taken);
                }
                other => log.push(format!("take {:?}", other.map(|_| ()))),
            },
            6 => {
                let which = random.below(2) as usize;
                let newest = publishers[which].sequence;
                let name = name(newest.saturating_sub(random.below(20)));
                match reader.take_by_name(name) {
                    Ok(TakenByName::Here(taken)) => {
                        assert_eq!(MessageName::of(taken.info()), name);
                        let key = (taken.message().index.0, taken.info().position);
                        assert!(given.insert(key), "seed {seed} step {step}: twice {key:?}\n{log:#?}");
                        log.push(format!("take {:?}", name.sequence));
                        held.push(taken);
                    }
                    other => log.push(format!("take {:?} {other:?}", name.sequence)),
                }
            }
            7 if !held.is_empty() => {
                let one = held.swap_remove(random.below(held.len() as u64) as usize);
                log.push(format!("put back {:?}", one.info().sequence));
                given.remove(&(one.message().index.0, one.info().position));
                reader.put_back(one);
            }
            8 if !held.is_empty() => {
                let one = held.swap_remove(random.below(held.len() as u64) as usize);
                log.push(format!("drop {:?}", one.info().sequence));
            }
            _ => {}
        }
        let counters = reader.counters();
        assert!(counters.taken >= given.len() as u64, "seed {seed} step {step} {counters:?}\n{log:#?}");
    }
    held.clear();
    let said = reader.ready_count(100_000).ready;
    let mut came = 0;
    loop {
        match reader.take() {
            Ok(Some(taken)) => {
                came += 1;
                log.push(format!("last {:?}", taken.info().sequence));
                assert!(given.insert((taken.message().index.0, taken.info().position)), "seed {seed} {log:#?}");
            }
            Ok(None) => break,
            Err(error) => panic!("seed {seed}: {error} {log:#?}"),
        }
    }
    assert_eq!(said, came, "seed {seed} depth {depth} messages {messages}\n{log:#?}");
    let counters = reader.counters();
    assert_eq!((counters.held, counters.taken), (0, given.len() as u64), "seed {seed}");
    let since: u64 = publishers.iter().zip(&before).map(|(publisher, before)| publisher.sequence - before).sum();
    let all = counters.taken + counters.lost;
    if !in_order {
        // History may be taken, lost or not be offered any more.
        assert!(
            (since..=since + from_history).contains(&all),
            "seed {seed} depth {depth} {counters:?} since {since} history {from_history}\n{log:#?}"
        );
        if from_history == 0 {
            assert_eq!(all, since, "seed {seed}");
        }
    }
    // Nothing is pinned.
    for publisher in &mut publishers {
        publisher.meet();
        assert!(publisher.port.make_room(0), "seed {seed} depth {depth}\n{log:#?}");
    }
}

#[test]
fn in_any_order_of_steps_each_message_is_given_once_or_lost() {
    (1..3000).for_each(walk_randomly);
}
