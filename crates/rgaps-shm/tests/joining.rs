//! Subscribers that join while an arrival counts what was lost before.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rgaps_shm::words::queue::{MessageIndex, Named, Position};
use rgaps_shm::{Segment, SlotTable, SubscriberFile, SubscriberSpec};

#[test]
fn a_subscriber_that_is_joining_counts_no_loss_from_before() {
    let segment = Arc::new(Segment::create([1; 16]).unwrap());
    let table = SlotTable::new(segment.clone());
    // One message, so that all who come have joined at position 1.
    segment.queue().publish(Named { message: MessageIndex(0), generation: 1 }).unwrap();
    let is_over = AtomicBool::new(false);
    let mut charged = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                // For those who had joined by position 0: nobody.
                table.count_lost(1, Position(0));
            }
        });
        for _ in 0..10_000 {
            let file = SubscriberFile::create().unwrap();
            for _ in 0..10 {
                let slot = table.admit_subscriber(&SubscriberSpec::default(), &file).unwrap();
                charged += u64::from(segment.subscriber(slot.index).unwrap().lost.load(Ordering::Relaxed) != 0);
                table.release_subscriber(slot);
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert_eq!(charged, 0, "of 100,000 subscribers");
}
