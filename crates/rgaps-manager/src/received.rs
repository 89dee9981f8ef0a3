//! Which messages of one host and topic have arrived, by publisher: which need not be resent, and which were lost in between.
//!
//! It outlives connections and ports, and, since the segment has a record of each publisher (`rgaps_shm::manager::arrival_records`), the manager. No I/O.
//!
//! Trusts      nothing for longer than a connection: an impostor of that host may number messages arbitrarily. With its next ring request the host
//!             states the newest sequence of each publisher, and `correct` forgets later ones. A step of more than `SEQUENCE_STEP_MAX` does not
//!             count as a loss (docs/decisions/019-one-lie.md).
//! Bounds      `REMEMBERED_MAX` publishers per host; the longest silent one is forgotten first. If a host has no more records in the segment, a publisher
//!             gets that of the longest silent one.

use std::collections::HashMap;

use rgaps_link::MessageName;
use rgaps_shm::info::SEQUENCE_STEP_MAX;
use rgaps_shm::manager::arrival_records::{ArrivalRecords, PortHistory, RecordIndex, RecordedArrival};
use rgaps_shm::manager::last_received::LastReceived;
use rgaps_shm::words::queue::Position;

/// Publishers of one host that are remembered.
pub(crate) const REMEMBERED_MAX: usize = 1024;

/// What has arrived from one publisher.
#[derive(Clone, Copy, Debug)]
struct Known {
    last: LastReceived,
    /// Where the queue ended when a later message was dropped here: whoever had joined by then counts what is missing after it.
    dropped_at: Position,
    /// Through which ports late joiners have had its messages.
    history: PortHistory,
    /// Its record in the segment.
    place: Option<RecordIndex>,
}

impl Known {
    /// Nothing but the last message is known.
    fn new(last: LastReceived) -> Self {
        Self { last, history: PortHistory::default(), dropped_at: Position(0), place: None }
    }
}

/// What an arriving message is for the subscribers of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// New. `lost` messages between it and the one at `since` have not arrived.
    New { lost: u64, since: Position },
    /// So far from the last one that its publisher cannot have sent the messages in between: counting restarts, and none counts as lost.
    Step { from: u64 },
    /// Not new, but only some subscribers have it: those that had joined by this position, and those that looked for history before this many ports
    /// of the topic had ended. It is published again, for the others only.
    Seen(Position, u32),
    /// All subscribers have it.
    Duplicate,
}

/// The messages that have arrived, by publisher.
#[derive(Debug)]
pub(crate) struct Received {
    source_host: [u8; 16],
    records: ArrivalRecords,
    known: HashMap<u64, Known>,
    /// Where the queue here ended at the last hand-shake of a host of which nothing was known.
    start: Position,
    has_begun: bool,
    /// See `unsubscribe`.
    is_unsubscribed: bool,
    /// How many ports had ended when the last one of this host had, for publishers of which nothing else says what the ports have had.
    ended_ports: u32,
}

impl Received {
    /// For a host of which nothing is known. `records`: those of the topic.
    pub(crate) fn new(source_host: [u8; 16], records: ArrivalRecords) -> Self {
        let (known, start) = (HashMap::new(), Position(0));
        Self { source_host, records, known, start, has_begun: false, is_unsubscribed: false, ended_ports: 0 }
    }

    /// The last port has ended, as the `ended_ports`th of the topic.
    pub(crate) fn end_port(&mut self, ended_ports: u32) {
        self.ended_ports = ended_ports;
        let Self { known, records, .. } = self;
        for known in known.values_mut() {
            known.history.end_port(ended_ports);
            write(records, known);
        }
    }

    /// The port ends because nobody subscribes here: the host owes nothing that it publishes before the next hand-shake.
    pub(crate) fn unsubscribe(&mut self) {
        self.is_unsubscribed = true;
    }

    /// Takes over what the segment says of publishers, for a host of which nothing else is known.
    pub(crate) fn take_over(&mut self, in_segment: impl IntoIterator<Item = (u64, RecordedArrival)>) {
        for (publisher, RecordedArrival { last, history, record }) in in_segment {
            self.insert(publisher, Known { history, place: record, ..Known::new(last) });
        }
    }

    /// Merges the last messages that the message table has. Those that are not known count as had by the last port that has ended.
    pub(crate) fn recall(&mut self, in_segment: impl IntoIterator<Item = (u64, LastReceived)>) {
        for (publisher, last) in in_segment {
            let known = self.known.get(&publisher).copied();
            if known.is_none_or(|known| known.last.sequence < last.sequence) {
                let mut history = known.map(|known| known.history).unwrap_or_default();
                history.note(last.sequence);
                history.end_port(self.ended_ports);
                self.insert(publisher, Known { last, history, ..known.unwrap_or(Known::new(last)) });
            }
        }
    }

    /// Forgets sequences that the host's publishers cannot have sent, since they are beyond `published`, and takes from the segment (`in_segment`)
    /// what is within that. Returns the number of publishers of which something was forgotten.
    pub(crate) fn correct(
        &mut self,
        published: &HashMap<u64, u64>,
        in_segment: impl FnOnce() -> HashMap<u64, LastReceived>,
    ) -> usize {
        let is_false = |publisher: &u64, known: &mut Known| {
            published.get(publisher).is_some_and(|last| known.last.sequence > *last)
        };
        let forgotten: Vec<Known> = self.known.extract_if(is_false).map(|(_, known)| known).collect();
        forgotten.iter().for_each(|known| self.free_record(known));
        if !forgotten.is_empty() {
            let mut unknown = in_segment();
            unknown.retain(|publisher, _| !self.known.contains_key(publisher));
            self.recall(unknown);
        }
        forgotten.len()
    }

    /// Begins a connection. `end`: where the queue here ends. False for a host of which nothing is known: it owes only what it publishes from now
    /// on.
    pub(crate) fn hand_shake(&mut self, end: Position) -> bool {
        let is_owed = !std::mem::take(&mut self.is_unsubscribed);
        let remembers = is_owed && (!self.known.is_empty() || self.has_begun);
        self.has_begun = true;
        if !remembers {
            self.start = end;
        }
        remembers
    }

    /// Notes a publisher of which nothing has arrived, before its first message is judged. `previous`: the sender owes none of its messages up to
    /// that sequence.
    pub(crate) fn note_first(&mut self, name: MessageName, previous: u64) {
        if !self.known.contains_key(&name.publisher) {
            let position = self.last().unwrap_or(self.start);
            let last = LastReceived { sequence: previous.min(name.sequence.saturating_sub(1)), position };
            self.insert(name.publisher, Known::new(last));
        }
    }

    /// Notes that the sender owes no message up to `previous`. Call it before `judge`, for a message over a lossless link. Messages up to there had
    /// arrived, or were counted as lost, before the predecessor of this manager died, which had acknowledged them.
    pub(crate) fn note_acknowledged(&mut self, name: MessageName, previous: u64) {
        if let Some(known) = self.known.get_mut(&name.publisher)
            && previous < name.sequence
            && previous.checked_sub(known.last.sequence).is_some_and(|by| by <= SEQUENCE_STEP_MAX)
        {
            known.last.sequence = previous;
            write(&self.records, known);
        }
    }

    /// Notes that a message is lost, and need not be resent: it was dropped here where the queue ended at `dropped_at`, or the sender has skipped it.
    pub(crate) fn give_up(&mut self, name: MessageName, dropped_at: Option<Position>) {
        if let Some(known) = self.known.get_mut(&name.publisher) {
            known.dropped_at = dropped_at.unwrap_or(known.dropped_at);
            known.last.sequence = known.last.sequence.max(name.sequence);
            write(&self.records, known);
        }
    }

    /// The last sequence of each publisher, which need not be resent.
    pub(crate) fn resume(&self) -> Vec<(u64, u64)> {
        self.known.iter().map(|(publisher, known)| (*publisher, known.last.sequence)).collect()
    }

    /// Whether the present port has had the last message of each publisher, and so keeps its history.
    pub(crate) fn keeps_history(&self) -> bool {
        self.known.values().all(|known| known.history.last_in_port() >= known.last.sequence.max(1))
    }

    /// Judges a message of which the first record arrives.
    pub(crate) fn judge(&self, name: MessageName) -> Verdict {
        let Some(known) = self.known.get(&name.publisher) else {
            return Verdict::New { lost: 0, since: Position(0) };
        };
        let LastReceived { sequence, position } = known.last;
        if name.sequence <= known.history.last_in_port() {
            Verdict::Duplicate
        } else if name.sequence <= sequence {
            Verdict::Seen(position, known.history.had_before(name.sequence))
        } else if name.sequence - sequence > SEQUENCE_STEP_MAX {
            Verdict::Step { from: sequence }
        } else {
            Verdict::New { lost: name.sequence - sequence - 1, since: position.max(known.dropped_at) }
        }
    }

    /// Notes that a message was published here.
    pub(crate) fn note(&mut self, name: MessageName, position: Position) {
        let last = LastReceived { sequence: name.sequence, position };
        let mut known = self.known.get(&name.publisher).copied().unwrap_or(Known::new(last));
        if known.last.sequence < name.sequence {
            known.last = last;
        }
        known.history.note(name.sequence);
        self.insert(name.publisher, known);
    }

    /// The position of the newest message.
    pub(crate) fn last(&self) -> Option<Position> {
        self.known.values().map(|known| known.last.position).max()
    }

    /// Forgets all publishers of the host.
    pub(crate) fn forget(self) {
        self.known.values().for_each(|known| self.free_record(known));
    }

    fn insert(&mut self, publisher: u64, mut known: Known) {
        if self.known.len() >= REMEMBERED_MAX && !self.known.contains_key(&publisher) {
            let silent = self.known.iter().min_by_key(|(_, known)| known.last.position).map(|(silent, _)| *silent);
            let silent = silent.and_then(|silent| self.known.remove(&silent));
            silent.iter().for_each(|known| self.free_record(known));
        }
        known.place = known.place.or_else(|| self.records.reserve(self.source_host, publisher));
        known.place = known.place.or_else(|| self.pass_on_record(publisher, known.last.position));
        write(&self.records, &known);
        self.known.insert(publisher, known);
    }

    /// Takes the record of the longest silent publisher, if it has been silent since before `position`.
    fn pass_on_record(&mut self, publisher: u64, position: Position) -> Option<RecordIndex> {
        let before = self.known.values_mut().filter(|known| known.place.is_some() && known.last.position < position);
        let place = before.min_by_key(|known| known.last.position)?.place.take()?;
        self.records.pass_on(place, publisher);
        Some(place)
    }

    fn free_record(&self, known: &Known) {
        known.place.into_iter().for_each(|place| self.records.free_record(self.source_host, place));
    }
}

/// Notes in the segment what is known of a publisher.
fn write(records: &ArrivalRecords, known: &Known) {
    if let Some(place) = known.place {
        records.note(place, known.last, known.history);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rgaps_shm::Segment;
    use rgaps_shm::manager::arrival_records::RECORDS_RESERVED;
    use std::sync::Arc;

    fn received() -> Received {
        let segment = Arc::new(Segment::create([1; 16]).unwrap());
        Received::new([7; 16], ArrivalRecords::new(segment))
    }

    fn name(sequence: u64) -> MessageName {
        MessageName { publisher: 1, sequence }
    }

    #[test]
    fn missing_messages_are_counted_once_and_repeated_ones_are_recognised() {
        let mut received = received();
        assert_eq!(received.judge(name(7)), Verdict::New { lost: 0, since: Position(0) }, "it was there before us");
        received.note(name(7), Position(3));
        assert_eq!(received.judge(name(7)), Verdict::Duplicate);
        assert_eq!(received.judge(name(10)), Verdict::New { lost: 2, since: Position(3) });
        received.note(name(10), Position(4));
        assert_eq!(received.judge(name(11)), Verdict::New { lost: 0, since: Position(4) });
        assert_eq!(received.resume(), [(1, 10)]);
    }

    #[test]
    fn messages_of_a_former_port_count_as_seen_and_newer_state_of_the_segment_wins() {
        let mut received = received();
        received.note(name(7), Position(3));
        received.end_port(2);
        received.recall([(1, LastReceived { sequence: 9, position: Position(8) })]);
        assert_eq!(received.judge(name(7)), Verdict::Seen(Position(8), 2));
        received.note(name(7), Position(9));
        assert_eq!(received.judge(name(7)), Verdict::Duplicate);
        assert_eq!(received.judge(name(9)), Verdict::Seen(Position(8), 2));
        assert_eq!(received.judge(name(10)), Verdict::New { lost: 0, since: Position(8) });
        received.end_port(3);
        assert_eq!(received.judge(name(7)), Verdict::Seen(Position(8), 3));
        assert_eq!(received.judge(name(9)), Verdict::Seen(Position(8), 2), "that port had not had it");
    }

    #[test]
    fn a_port_keeps_the_history_once_it_has_had_all_of_it() {
        let mut received = received();
        received.note(name(8), Position(3));
        assert!(received.keeps_history());
        received.end_port(1);
        received.note(name(7), Position(5));
        assert!(!received.keeps_history(), "8 is still to come");
        received.note(name(8), Position(6));
        assert!(received.keeps_history());
    }

    #[test]
    fn a_successor_knows_which_ports_gave_messages_to_late_joiners() {
        let segment = Arc::new(Segment::create([1; 16]).unwrap());
        let mut first = Received::new([7; 16], ArrivalRecords::new(segment.clone()));
        first.note(name(8), Position(3));
        first.end_port(1);
        let mut successor = first;
        for ended_ports in 2..4 {
            let (records, mut in_segment) = ArrivalRecords::take_over(segment.clone());
            successor = Received::new([7; 16], records);
            successor.take_over(in_segment.remove(&[7; 16]).unwrap());
            successor.end_port(ended_ports);
            assert_eq!(successor.judge(name(8)), Verdict::Seen(Position(3), 1), "port {ended_ports} did not have it");
        }
        successor.note(name(8), Position(9));
        let (records, mut in_segment) = ArrivalRecords::take_over(segment);
        successor = Received::new([7; 16], records);
        successor.take_over(in_segment.remove(&[7; 16]).unwrap());
        successor.end_port(4);
        assert_eq!(successor.judge(name(8)), Verdict::Seen(Position(3), 4));
    }

    #[test]
    fn a_successor_knows_what_arrived_and_what_was_counted() {
        let segment = Arc::new(Segment::create([1; 16]).unwrap());
        let mut first = Received::new([7; 16], ArrivalRecords::new(segment.clone()));
        first.note(name(7), Position(3));
        first.give_up(name(9), None);
        first.note(MessageName { publisher: 2, sequence: 4 }, Position(5));
        let (records, mut in_segment) = ArrivalRecords::take_over(segment);
        let mut successor = Received::new([7; 16], records);
        successor.take_over(in_segment.remove(&[7; 16]).unwrap());
        let mut resume = successor.resume();
        resume.sort_unstable();
        assert_eq!(resume, [(1, 9), (2, 4)]);
        assert_eq!(successor.judge(name(12)), Verdict::New { lost: 2, since: Position(3) });
    }

    #[test]
    fn an_impossible_step_is_no_loss_and_is_forgotten_at_the_next_ring_request() {
        let mut received = received();
        received.note(name(7), Position(3));
        let furthest = 7 + SEQUENCE_STEP_MAX;
        assert_eq!(received.judge(name(furthest)), Verdict::New { lost: SEQUENCE_STEP_MAX - 1, since: Position(3) });
        assert_eq!(received.judge(name(furthest + 1)), Verdict::Step { from: 7 });
        assert_eq!(received.judge(name(u64::MAX)), Verdict::Step { from: 7 });
        received.note(name(u64::MAX), Position(4));
        let in_segment = || HashMap::from([(1, LastReceived { sequence: 7, position: Position(3) })]);
        assert_eq!(received.correct(&HashMap::from([(2, 0)]), || unreachable!()), 0, "of others");
        assert_eq!(received.correct(&HashMap::from([(1, 9)]), in_segment), 1);
        assert_eq!(received.judge(name(9)), Verdict::New { lost: 1, since: Position(3) });
        assert_eq!(received.correct(&HashMap::from([(1, 9)]), || unreachable!()), 0);
    }

    #[test]
    fn missing_first_messages_of_a_new_publisher_are_counted_since_the_last_arrival() {
        let mut received = received();
        received.hand_shake(Position(2));
        received.note_first(name(21), 0);
        assert_eq!(received.judge(name(21)), Verdict::New { lost: 20, since: Position(2) });
        let other = |sequence| MessageName { publisher: 2, sequence };
        received.note(name(21), Position(5));
        received.note_first(other(9), 6);
        assert_eq!(received.judge(other(9)), Verdict::New { lost: 2, since: Position(5) });
        received.note_first(other(9), 0);
        assert_eq!(received.judge(other(9)), Verdict::New { lost: 2, since: Position(5) }, "it is known by now");
        let liar = MessageName { publisher: 3, sequence: 4 };
        received.note_first(liar, u64::MAX);
        assert_eq!(received.judge(liar), Verdict::New { lost: 0, since: Position(5) });
    }

    #[test]
    fn what_a_dead_manager_had_acknowledged_counts_no_more() {
        let mut successor = received();
        successor.recall([(1, LastReceived { sequence: 5, position: Position(3) })]);
        successor.note_acknowledged(name(13), 10);
        assert_eq!(successor.judge(name(13)), Verdict::New { lost: 2, since: Position(3) });
        successor.note_acknowledged(name(13), 7);
        successor.note_acknowledged(name(13), 13);
        successor.note_acknowledged(name(u64::MAX), u64::MAX - 1);
        assert_eq!(successor.judge(name(13)), Verdict::New { lost: 2, since: Position(3) }, "of an impostor");
    }

    #[test]
    fn a_dropped_message_counts_once_and_is_not_resent() {
        let mut received = received();
        received.note(name(7), Position(3));
        received.give_up(name(8), None);
        assert_eq!(received.resume(), [(1, 8)]);
        assert_eq!(received.judge(name(8)), Verdict::Seen(Position(3), 0));
        assert_eq!(received.judge(name(9)), Verdict::New { lost: 0, since: Position(3) });
    }

    #[test]
    fn the_publishers_that_were_heard_last_have_the_records_of_their_host() {
        let segment = Arc::new(Segment::create([1; 16]).unwrap());
        let records = ArrivalRecords::new(segment.clone());
        let _of_another_host: Vec<_> = std::iter::from_fn(|| records.reserve([8; 16], 1)).collect();
        let mut received = Received::new([7; 16], records);
        let reserved = u64::from(RECORDS_RESERVED);
        for publisher in (0..reserved + 3).chain([1]) {
            let position = Position(received.last().map_or(1, |last| last.0 + 1));
            received.note(MessageName { publisher, sequence: position.0 }, position);
        }
        let (_, in_segment) = ArrivalRecords::take_over(segment);
        let mut recorded: Vec<u64> = in_segment[&[7; 16]].keys().copied().collect();
        recorded.sort_unstable();
        assert_eq!(recorded, [1].into_iter().chain(4..reserved + 3).collect::<Vec<u64>>());
        assert_eq!(in_segment[&[7; 16]][&5].last, LastReceived { sequence: 6, position: Position(6) });
    }

    #[test]
    fn the_publisher_that_was_silent_longest_is_forgotten_first() {
        let mut received = received();
        for publisher in 0..=REMEMBERED_MAX as u64 {
            received.note(MessageName { publisher, sequence: 1 }, Position(publisher));
        }
        assert_eq!(received.resume().len(), REMEMBERED_MAX);
        assert!(!received.resume().iter().any(|(publisher, _)| *publisher == 0));
    }
}
