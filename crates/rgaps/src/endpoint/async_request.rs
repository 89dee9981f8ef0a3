//! A request that the node's thread sends to the manager, so that callers need not wait. The answer is kept until a caller uses it.
//!
//! ```text
//!   NEW ──node's thread sends──▶ SENT  ──manager answers, callers are woken──▶ ANSWERED ──first caller──▶ TAKEN
//!                                  └────manager dies: sent to its successor
//! ```

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use rgaps_control::local::Body;
use rgaps_os::EventFd;

use crate::endpoint::answer::Answer;
use crate::endpoint::hello::SessionError;

/// A request and its state.
#[derive(Debug)]
pub(crate) struct AsyncRequest {
    body: Body,
    /// A file descriptor that is sent beside it.
    beside: Option<Arc<EventFd>>,
    waker: Waker,
    state: Mutex<State>,
    answered: Condvar,
}

#[derive(Debug)]
enum State {
    New,
    /// Sent to the manager of this `Session::epoch`.
    Sent(u64),
    Answered(Result<Answer, SessionError>),
    Taken,
}

impl AsyncRequest {
    /// The answer wakes `waker`.
    pub(crate) fn new(body: Body, beside: Option<Arc<EventFd>>, waker: Waker) -> Self {
        Self { body, beside, waker, state: Mutex::new(State::New), answered: Condvar::new() }
    }

    /// The request to send to this manager, unless it was sent already.
    pub(crate) fn body_to_send(&self, epoch: u64) -> Option<Body> {
        let mut state = self.lock();
        match *state {
            State::New => {}
            State::Sent(of) if of != epoch => {}
            State::Sent(_) | State::Answered(_) | State::Taken => return None,
        }
        *state = State::Sent(epoch);
        Some(self.body.clone())
    }

    /// The file descriptor to send beside the request.
    pub(crate) fn beside(&self) -> Option<BorrowedFd<'_>> {
        self.beside.as_ref().map(|event| event.as_fd())
    }

    /// Notes that the request could not be sent; it will be sent again.
    pub(crate) fn note_unsent(&self) {
        let mut state = self.lock();
        if matches!(*state, State::Sent(_)) {
            *state = State::New;
        }
    }

    /// Stores the answer and wakes the callers.
    pub(crate) fn answer(&self, answer: Result<Answer, SessionError>) {
        *self.lock() = State::Answered(answer);
        self.answered.notify_all();
        self.waker.wake_by_ref();
    }

    /// Whether there is no answer yet.
    pub(crate) fn is_open(&self) -> bool {
        matches!(*self.lock(), State::New | State::Sent(_))
    }

    /// Waits for the answer.
    pub(crate) fn wait(&self, limit: Duration) {
        let is_open = |state: &mut State| matches!(*state, State::New | State::Sent(_));
        drop(self.answered.wait_timeout_while(self.lock(), limit, is_open));
    }

    /// Takes the answer; only the first call gets it.
    pub(crate) fn take_answer(&self) -> Option<Result<Answer, SessionError>> {
        let mut state = self.lock();
        match std::mem::replace(&mut *state, State::Taken) {
            State::Answered(answer) => Some(answer),
            other => {
                *state = other;
                None
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
