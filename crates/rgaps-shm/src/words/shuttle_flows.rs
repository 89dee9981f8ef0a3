//! Whole flows under random schedules: `RUSTFLAGS="--cfg shuttle" cargo test -p rgaps-shm --lib --release shuttle`.
//!
//! Two publisher slots, three subscriber slots and a manager run the real functions on words of their own. A slot has up to two occupants, one
//! after the other. Any occupant may die before any access to a word; the manager then finishes its messages. `shuttle_flows/` repeats the code
//! of the ports, `subscribers.rs`, `past.rs` and `slot_table.rs` that combines several of these functions.
//!
//! Shuttle runs all accesses in one order, so these flows test schedules, but not memory orderings and fences: loom's models do that
//! (docs/proofs.md).
//!
//! RGAPS_SCHEDULES says how many schedules each test runs. A schedule that fails is printed; RGAPS_SCHEDULE runs it again.

#[cfg(test)]
mod fates;
#[cfg(test)]
mod manager;
#[cfg(test)]
mod publisher;
#[cfg(test)]
mod subscriber;
#[cfg(test)]
mod topic;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex as PlainMutex};

use shuttle::rand::{Rng, thread_rng};
use shuttle::scheduler::{PctScheduler, RandomScheduler, ReplayScheduler, Scheduler};
use shuttle::sync::Mutex;
use shuttle::{Config, MaxSteps, Runner, thread};

use crate::words::shuttle_flows::fates::{Mortality, live};
use crate::words::shuttle_flows::manager::Manager;
use crate::words::shuttle_flows::subscriber::SubscriberKind;
use crate::words::shuttle_flows::topic::{PUBLISHERS, SUBSCRIBERS, Tally, Topic};
use crate::words::sync::Ordering;

/// Schedules of each test, unless RGAPS_SCHEDULES says otherwise.
const SCHEDULES: usize = 10_000;
/// A flow has a few thousand steps; one with this many does not end.
const STEPS_MAX: usize = 200_000;
/// Preemptions of a schedule with few preemptions.
const FEW: usize = 5;
/// One in so many occupants dies.
const DEATHS: u64 = 3;

/// A number below `end`; the same one when the schedule is run again.
fn pick(end: u64) -> u64 {
    thread_rng().gen_range(0..end)
}

fn one_in(n: u64) -> bool {
    pick(n) == 0
}

/// Steps after which an occupant dies; `None` if it lives.
fn fate(topic: &Topic) -> Option<u32> {
    let steps = one_in(DEATHS).then(|| 1 + pick(250) as u32);
    topic.truth().tally.deaths += u64::from(steps.is_some());
    steps
}

/// The occupants of a publisher slot, one after the other.
fn publish(topic: &Topic, manager: &Mutex<Manager>, index: usize) {
    for _ in 0..2 {
        pause(8);
        // Messages of the former occupant may still be held; they are released at some time.
        let admitted = (0..20).find_map(|_| {
            let admitted = manager.lock().unwrap().admit_publisher(index);
            if admitted.is_none() {
                pause(8);
            }
            admitted
        });
        let Some((slot, publisher)) = admitted else { break };
        live(fate(topic), || publisher.run());
        manager.lock().unwrap().drain_publisher(slot);
    }
    topic.closed.fetch_add(1, Ordering::AcqRel);
    topic.wake_all();
}

/// The occupants of a subscriber slot, one after the other.
fn subscribe(topic: &Topic, manager: &Mutex<Manager>, index: usize) {
    // Sometimes a topic has few subscribers, so that the needs of others do not hide what one of them does.
    for _ in 0..pick(3) {
        pause(30);
        let kind = SubscriberKind {
            // Often one of each kind, otherwise any kind.
            depth: if one_in(2) { [0, 2, 1][index] } else { pick(4) },
            wants_history: index == 2 || one_in(3),
            takes: one_in(2).then(|| 1 + pick(6)),
        };
        let (slot, subscriber) = manager.lock().unwrap().admit_subscriber(index, kind);
        live(fate(topic), || subscriber.run());
        manager.lock().unwrap().release_subscriber(slot);
    }
}

fn pause(steps_max: u64) {
    (0..pick(steps_max)).for_each(|_| thread::yield_now());
}

/// One schedule.
fn flows() -> Tally {
    let topic = Arc::new(Topic::default());
    let manager = Arc::new(Mutex::new(Manager::new(topic.clone())));
    let slots = (0..PUBLISHERS + SUBSCRIBERS).map(|slot| {
        let (topic, manager) = (topic.clone(), manager.clone());
        thread::spawn(move || match slot.checked_sub(PUBLISHERS) {
            None => publish(&topic, &manager, slot),
            Some(slot) => subscribe(&topic, &manager, slot),
        })
    });
    let slots: Vec<_> = slots.collect();
    slots.into_iter().for_each(|slot| slot.join().unwrap());
    manager.lock().unwrap().check_nothing_is_left();
    topic.truth().tally
}

/// Runs flows with this scheduler, or runs RGAPS_SCHEDULE.
fn run(scheduler: impl Scheduler + Send + 'static) {
    let scheduler: Box<dyn Scheduler + Send> = match std::env::var("RGAPS_SCHEDULE") {
        Ok(schedule) => Box::new(ReplayScheduler::new_from_encoded(&schedule)),
        Err(_) => Box::new(scheduler),
    };
    let mut config = Config::new();
    config.max_steps = MaxSteps::FailAfter(STEPS_MAX);
    config.silence_warnings = true;
    let tally = Arc::new(PlainMutex::new(Tally::default()));
    let counted = tally.clone();
    let runner = Runner::new(Mortality(scheduler), config);
    let result = catch_unwind(AssertUnwindSafe(|| {
        runner.run(move || {
            let tally = flows();
            counted.lock().unwrap().add(&tally);
        })
    }));
    let name = std::thread::current().name().unwrap_or_default().to_owned();
    let tally = *tally.lock().unwrap();
    println!("{name}: {tally:?}");
    if let Err(failure) = result {
        println!("schedule {} failed; to run it again, give RGAPS_SCHEDULE what is printed above", tally.schedules + 1);
        resume_unwind(failure);
    }
}

fn schedules() -> usize {
    std::env::var("RGAPS_SCHEDULES").map_or(SCHEDULES, |n| n.parse().expect("RGAPS_SCHEDULES is a number"))
}

#[test]
fn shuttle_flows_keep_what_is_held_and_count_what_is_lost_in_any_order() {
    run(RandomScheduler::new(schedules()));
}

#[test]
fn shuttle_flows_keep_what_is_held_and_count_what_is_lost_with_few_preemptions() {
    run(PctScheduler::new(FEW, schedules()));
}
