//! Blocks that the other host may write itself: loaned ahead of need, for messages like the last ones, and granted over the link.
//!
//! ```text
//!   loan ──grant──▶ granted ──a message names it──▶ the message's loan ──▶ published
//!                      │                        └── the message is not wanted ──its end──▶ free
//!                      └──revoked, returned──▶ free
//! ```
//!
//! Bounds      At most `AHEAD_BYTES`, and two blocks more, are loaned ahead, never more than half of the pool, and only from free space: a grant takes
//!             no message from a subscriber. A message that waits for space gets them back first. An idle topic holds none.
//! Invariants  A block is free again only when the link has said that the peer can no longer write there, or is gone.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use rgaps_link::{GrantNumber, LandingPlace, LinkReceiver, MessageId};
use rgaps_shm::{Exhaustion, LoanedMessage};

use crate::arrival::messages::Messages;

/// Bytes that are granted ahead.
const AHEAD_BYTES: u64 = 8 << 20;
/// Grants are for the largest of so many large messages.
const RECENT: usize = 8;
/// After a time without large messages nothing stays granted.
const IDLE: Duration = Duration::from_secs(2);

/// What is granted over one connection.
#[derive(Debug)]
pub(super) struct Granted {
    loans: HashMap<GrantNumber, LoanedMessage>,
    /// The loan that the record under way names for the first time.
    named: Option<LoanedMessage>,
    /// Loans of messages that nobody wants, until the peer has written them.
    unwanted: HashMap<MessageId, LoanedMessage>,
    /// Bytes of the last large messages.
    recent: [u64; RECENT],
    count: usize,
    last_at: Instant,
    /// There was no space for a grant; wait for the next message.
    is_full: bool,
}

impl Granted {
    pub(super) fn new() -> Self {
        let (loans, unwanted) = (HashMap::new(), HashMap::new());
        Self { loans, named: None, unwanted, recent: [0; RECENT], count: 0, last_at: Instant::now(), is_full: false }
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
        self.is_full = false;
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

impl Messages {
    /// Loans and grants blocks for the next messages, if large ones arrive and there is free space.
    pub(super) fn grant_ahead(&mut self, link: &mut dyn LinkReceiver) {
        self.take_returned(link);
        let granted = &self.granted;
        let bytes = granted.recent.iter().copied().max().unwrap_or(0);
        let held = granted.loans.len() as u64 + granted.unwanted.len() as u64;
        if bytes == 0 || granted.is_full || held >= link.grants_max() as u64 {
            return;
        }
        let Some(memory) = self.landing_memory.clone() else { return };
        let most = (AHEAD_BYTES / bytes + 2).min(self.state.pool.bytes() / 2 / bytes).min(link.grants_max() as u64);
        for _ in held..most {
            let Some(loan) = self.try_loan_free(bytes) else {
                self.granted.is_full = true;
                return;
            };
            let place = LandingPlace { memory: memory.clone(), offset: loan.offset() };
            match link.grant(&place, bytes) {
                Ok(Some(number)) => drop(self.granted.loans.insert(number, loan)),
                // A link that has failed says so when it is read.
                Ok(None) | Err(_) => {
                    self.granted.is_full = true;
                    return self.state.port.give_back(loan);
                }
            }
        }
    }

    /// Loans a block from space that no message has.
    fn try_loan_free(&mut self, bytes: u64) -> Option<LoanedMessage> {
        self.charge_for(bytes, Exhaustion::Refuse).ok()?;
        let loan = self.state.port.try_loan(bytes, Exhaustion::Refuse).ok()?;
        self.with_memory(loan, bytes)
    }

    /// Gives back the blocks that the peer has returned.
    pub(super) fn take_returned(&mut self, link: &mut dyn LinkReceiver) {
        while let Some(number) = link.next_returned() {
            if let Some(loan) = self.granted.loans.remove(&number) {
                self.state.port.give_back(loan);
            }
        }
    }

    /// Wants all blocks back that no message uses.
    pub(super) fn revoke_grants(&mut self, link: &mut dyn LinkReceiver) {
        if !self.granted.loans.is_empty() {
            link.revoke_grants();
            self.take_returned(link);
        }
    }

    /// Called while nothing arrives: an idle topic has no grants.
    pub(super) fn rest_grants(&mut self, link: &mut dyn LinkReceiver) {
        if self.granted.last_at.elapsed() >= IDLE {
            self.granted.recent = [0; RECENT];
            self.revoke_grants(link);
        }
        self.take_returned(link);
    }
}
