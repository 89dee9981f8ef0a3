//! What a subscriber remembers of publishers whose messages are taken by handle.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use rgaps_shm::reader::seen_publishers::SEEN_MAX;

/// One number for each of at most `SEEN_MAX` publishers.
#[derive(Debug, Default)]
pub(crate) struct ByPublisher(HashMap<u64, u64>);

impl ByPublisher {
    fn entry(&mut self, publisher: u64) -> Entry<'_, u64, u64> {
        if self.0.len() >= SEEN_MAX && !self.0.contains_key(&publisher) {
            self.0.clear();
        }
        self.0.entry(publisher)
    }
}

/// For each publisher whose message did not arrive within a time-out, the newest sequence seen of it by then (0 for none).
#[derive(Debug, Default)]
pub(crate) struct Absent(ByPublisher);

impl Absent {
    pub(crate) fn add(&mut self, publisher: u64, newest: u64) {
        self.0.entry(publisher).insert_entry(newest);
    }

    /// Whether no message of the publisher has arrived since.
    pub(crate) fn has(&self, publisher: u64, newest: u64) -> bool {
        self.0.0.get(&publisher) == Some(&newest)
    }
}

/// For each publisher, the number of handles whose messages were published before the subscriber joined.
#[derive(Debug, Default)]
pub(crate) struct Early(ByPublisher);

impl Early {
    pub(crate) fn add(&mut self, publisher: u64) -> u64 {
        let count = self.0.entry(publisher).or_default();
        *count += 1;
        *count
    }
}
