//! Requests to the manager: sent by callers that wait for the answer, and by the node's thread for callers that do not.
//!
//! The node's thread may be a caller itself, since wakers run on it. It then reads the socket while it waits.

use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, TryRecvError, sync_channel};
use std::sync::{Arc, Weak};
use std::task::Waker;
use std::time::Duration;

use rgaps_control::local::{Body, Connection, LocalError, Request};
use rgaps_os::EventFd;

use super::{DEATHS_MAX, RawAnswer, Session, lock};
use crate::endpoint::answer::Answer;
use crate::endpoint::async_request::AsyncRequest;
use crate::endpoint::hello::{ANSWER_TIMEOUT, SessionError, StopAwareTimeout};

/// The receiver of an answer.
#[derive(Debug)]
pub(super) enum Awaiting {
    Caller(SyncSender<RawAnswer>),
    Async(Weak<AsyncRequest>),
}

impl Awaiting {
    /// Delivers the answer.
    pub(super) fn answer(self, outcome: RawAnswer, epoch: u64) {
        match self {
            Self::Caller(caller) => drop(caller.try_send(outcome)),
            Self::Async(request) => {
                if let Some(request) = request.upgrade() {
                    request.answer(answer(outcome, epoch));
                }
            }
        }
    }

    /// Whether the receiver still exists.
    pub(super) fn is_there(&self) -> bool {
        match self {
            Self::Caller(_) => true,
            Self::Async(request) => request.strong_count() > 0,
        }
    }
}

impl Session {
    /// Sends a request and waits for the answer. If the manager dies meanwhile, the request is sent to its successor.
    pub(crate) fn request(&self, body: &Body, fds: &[BorrowedFd<'_>]) -> Result<Answer, SessionError> {
        self.request_within(body, fds, ANSWER_TIMEOUT)
    }

    pub(crate) fn request_within(
        &self,
        body: &Body,
        fds: &[BorrowedFd<'_>],
        timeout: Duration,
    ) -> Result<Answer, SessionError> {
        let mut timeout_left = StopAwareTimeout::new(timeout);
        let mut deaths = 0;
        loop {
            let epoch = self.epoch.load(Ordering::Acquire);
            let id = self.next_id.fetch_add(1, Ordering::Relaxed);
            let (sender, receiver) = sync_channel(1);
            lock(&self.pending).insert(id, Awaiting::Caller(sender));
            let connection = lock(&self.connection).clone();
            let sent = connection.send(&Request { id, body: body.clone() }, fds);
            let receive = |slice| {
                if !self.is_runner() {
                    return receiver.recv_timeout(slice);
                }
                let served = self.serve(&connection, slice);
                match receiver.try_recv() {
                    Ok(outcome) => Ok(outcome),
                    Err(TryRecvError::Empty) if served.is_ok() => Err(RecvTimeoutError::Timeout),
                    Err(_) => Err(RecvTimeoutError::Disconnected),
                }
            };
            let answered = sent.map(|()| {
                loop {
                    match timeout_left.wait(receive) {
                        Err(RecvTimeoutError::Timeout) if !timeout_left.is_over() => {}
                        answered => return answered,
                    }
                }
            });
            match answered {
                Ok(Ok(outcome)) => return answer(outcome, epoch),
                Ok(Err(RecvTimeoutError::Timeout)) => {
                    if lock(&self.pending).remove(&id).is_none()
                        && let Ok(outcome) = receiver.recv()
                    {
                        // The node's thread was delivering the answer at the time-out.
                        return answer(outcome, epoch);
                    }
                    self.is_silent.store(true, Ordering::Release);
                    return Err(SessionError::timed_out(&connection, &self.dir, timeout));
                }
                Ok(Err(RecvTimeoutError::Disconnected)) | Err(LocalError::Closed) => {
                    if self.is_runner() {
                        // This thread looks for the successor itself, so it cannot wait for one.
                        return Err(LocalError::Closed.into());
                    }
                    deaths += 1;
                    if deaths == DEATHS_MAX {
                        return Err(SessionError::Died { deaths, log: self.dir.log() });
                    }
                    self.await_successor(epoch, &mut timeout_left, timeout)?;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The present manager did not answer, or its successor is of another version.
    fn timed_out(&self, waited: Duration) -> SessionError {
        if let Some(refusal) = lock(&self.other_version).clone() {
            return refusal.into();
        }
        SessionError::timed_out(&lock(&self.connection), &self.dir, waited)
    }

    fn await_successor(
        &self,
        epoch: u64,
        timeout_left: &mut StopAwareTimeout,
        timeout: Duration,
    ) -> Result<(), SessionError> {
        while self.epoch.load(Ordering::Acquire) == epoch {
            let is_refused = lock(&self.other_version).is_some();
            if is_refused || timeout_left.is_over() || self.stopping.load(Ordering::Acquire) {
                return Err(self.timed_out(timeout));
            }
            timeout_left.wait(std::thread::sleep);
        }
        Ok(())
    }

    /// Makes the node's thread send a request. Does not wait; the answer wakes `waker`.
    pub(crate) fn request_async(&self, body: Body, beside: Option<Arc<EventFd>>, waker: Waker) -> Arc<AsyncRequest> {
        let request = Arc::new(AsyncRequest::new(body, beside, waker));
        lock(&self.async_requests).push(Arc::downgrade(&request));
        self.kick();
        request
    }

    /// Waits until an asynchronous request is answered.
    pub(crate) fn wait_for_answer(&self, request: &AsyncRequest) -> Result<(), SessionError> {
        let mut timeout_left = StopAwareTimeout::new(ANSWER_TIMEOUT);
        while request.is_open() {
            if timeout_left.is_over() || self.stopping.load(Ordering::Acquire) {
                return Err(self.timed_out(ANSWER_TIMEOUT));
            }
            if self.is_runner() {
                let connection = lock(&self.connection).clone();
                timeout_left.wait(|slice| self.serve(&connection, slice))?;
            } else {
                timeout_left.wait(|slice| request.wait(slice));
            }
        }
        Ok(())
    }

    /// Sends the asynchronous requests that this manager has not received yet.
    pub(super) fn ask_questions(&self, connection: &Connection) {
        let epoch = self.epoch();
        let open: Vec<Arc<AsyncRequest>> = {
            let mut async_requests = lock(&self.async_requests);
            async_requests.retain(|request| request.upgrade().is_some_and(|request| request.is_open()));
            async_requests.iter().filter_map(Weak::upgrade).collect()
        };
        for request in open {
            let Some(body) = request.body_to_send(epoch) else { continue };
            let id = self.next_id.fetch_add(1, Ordering::Relaxed);
            lock(&self.pending).insert(id, Awaiting::Async(Arc::downgrade(&request)));
            match connection.send_now(&Request { id, body }, request.beside().as_slice()) {
                Ok(()) => continue,
                // Sent again when the manager reads again, or to its successor.
                Err(LocalError::Full | LocalError::Closed) => request.note_unsent(),
                Err(error) => request.answer(Err(error.into())),
            }
            lock(&self.pending).remove(&id);
        }
    }

    /// Sends a request without waiting, for the node's thread, which reads the answers. False if it was not sent: a manager that is stopped reads
    /// nothing, and its clients' tasks must be woken meanwhile.
    pub(super) fn tell(&self, connection: &Connection, body: Body) -> bool {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let sent = connection.send_now(&Request { id, body }, &[]);
        sent.inspect_err(|error| tracing::debug!(%error, "a request could not be sent to rgapsd")).is_ok()
    }

    /// Like `tell`, but waits if another thread has filled the socket just now.
    pub(super) fn tell_trimmed(&self, connection: &Connection, trim: Body) {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        if let Err(error) = connection.send(&Request { id, body: trim }, &[]) {
            tracing::debug!(%error, "rgapsd could not be told of freed memory");
        }
    }

    /// Does a part of the node's thread's work while that thread itself waits for an answer.
    fn serve(&self, connection: &Connection, slice: Duration) -> Result<(), LocalError> {
        self.ask_questions(connection);
        let _ = rgaps_os::poll::readable(connection, slice);
        self.read(connection)
    }
}

fn answer(outcome: RawAnswer, epoch: u64) -> Result<Answer, SessionError> {
    let (reply, fds) = outcome?;
    Ok(Answer { reply, fds: fds.into_iter(), epoch })
}
