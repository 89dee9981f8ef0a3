//! What is granted over one connection: which loan each grant stands for, and how large the next ones should be.
//!
//! ```text
//!   loan ──grant──▶ granted ──a message names it──▶ the message's loan ──▶ published
//!                      │                        └── the message is not wanted ──its end──▶ free
//!                      └──revoked, returned──▶ free
//! ```

use std::collections::HashMap;
use std::time::{Duration, Instant};

use rgaps_link::{GrantNumber, MessageId};
use rgaps_shm::LoanedMessage;

/// Grants are for the largest of so many large messages.
const RECENT: usize = 8;
/// After a time without large messages nothing stays granted.
pub(super) const IDLE: Duration = Duration::from_secs(2);

/// What is granted over one connection.
#[derive(Debug)]
pub(super) struct Granted {
    pub(super) loans: HashMap<GrantNumber, LoanedMessage>,
    /// The loan that the record under way names for the first time.
    named: Option<LoanedMessage>,
    /// Loans of messages that nobody wants, until the peer has written them.
    unwanted: HashMap<MessageId, LoanedMessage>,
    /// Bytes of the last large messages.
    recent: [u64; RECENT],
    count: usize,
    last_at: Instant,
    /// There was no space for a grant, or a message waits for space: nothing is granted until the next message begins.
    pub(super) is_paused: bool,
    /// A block of device memory that cannot be granted was already reported.
    pub(super) has_reported_block: bool,
    /// Whether anything has been granted.
    pub(super) has_begun: bool,
}

impl Granted {
    pub(super) fn new() -> Self {
        let (loans, unwanted) = (HashMap::new(), HashMap::new());
        Self {
            loans,
            named: None,
            unwanted,
            recent: [0; RECENT],
            count: 0,
            last_at: Instant::now(),
            is_paused: false,
            has_reported_block: false,
            has_begun: false,
        }
    }

    /// The loan that the record under way names, if it has not been taken.
    pub(super) fn take_named(&mut self) -> Option<LoanedMessage> {
        self.named.take()
    }

    /// The record under way names a grant.
    pub(super) fn name(&mut self, number: GrantNumber) {
        self.named = self.loans.remove(&number);
    }

    /// The record under way has been looked at: if no message has taken the loan that it names, nobody wants it.
    pub(super) fn keep_unwanted(&mut self, message: MessageId) {
        if let Some(loan) = self.named.take() {
            self.unwanted.insert(message, loan);
        }
    }

    /// A message of so many bytes begins.
    pub(super) fn note(&mut self, bytes: u64) {
        self.recent[self.count % RECENT] = bytes;
        self.count += 1;
        self.last_at = Instant::now();
        self.is_paused = false;
    }

    /// Bytes for the next grants; 0 if nothing large arrives.
    pub(super) fn bytes_wanted(&self) -> u64 {
        self.recent.iter().copied().max().unwrap_or(0)
    }

    /// Blocks that the peer may write and that no wanted message has.
    pub(super) fn count(&self) -> u64 {
        (self.loans.len() + self.unwanted.len()) as u64
    }

    /// Whether blocks are granted, or will be.
    pub(super) fn is_in_use(&self) -> bool {
        self.bytes_wanted() > 0 || self.count() > 0
    }

    /// Whether no large message has arrived for a while, for the first time. From then on nothing is wanted.
    pub(super) fn becomes_idle(&mut self, now: Instant) -> bool {
        let becomes_idle = self.bytes_wanted() > 0 && now.saturating_duration_since(self.last_at) >= IDLE;
        if becomes_idle {
            self.recent = [0; RECENT];
        }
        becomes_idle
    }

    /// The loan of an unwanted message that the peer no longer writes.
    pub(super) fn end_unwanted(&mut self, message: MessageId) -> Option<LoanedMessage> {
        self.unwanted.remove(&message)
    }

    /// All loans, when the link is gone.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = LoanedMessage> {
        let unwanted = self.unwanted.drain().map(|(_, loan)| loan);
        self.loans.drain().map(|(_, loan)| loan).chain(unwanted).chain(self.named.take())
    }
}
