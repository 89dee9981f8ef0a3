//! What is asked of the manager, by callers that wait for the answer and by the node's thread for those who do not.
//!
//! The node's thread may be a caller itself, since wakers run on it: it then reads the socket while it waits.

use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, TryRecvError, sync_channel};
use std::sync::{Arc, Weak};
use std::task::Waker;
use std::time::Duration;

use rgaps_control::local::{Body, Connection, LocalError, Request};
use rustix::event::{PollFd, PollFlags, poll};

use super::{Answer, DEATHS_MAX, RawAnswer, Session, lock};
use crate::hello::{ANSWER_TIMEOUT, Patience, SessionError};
use crate::question::Question;

/// For whom an answer is.
#[derive(Debug)]
pub(super) enum Awaiting {
    Caller(SyncSender<RawAnswer>),
    Question(Weak<Question>),
}

impl Awaiting {
    /// Gives it out.
    pub(super) fn answer(self, outcome: RawAnswer, epoch: u64) {
        match self {
            Self::Caller(caller) => drop(caller.try_send(outcome)),
            Self::Question(question) => {
                if let Some(question) = question.upgrade() {
                    question.answer(answer(outcome, epoch));
                }
            }
        }
    }

    /// Whether anybody is there to have it.
    pub(super) fn is_there(&self) -> bool {
        match self {
            Self::Caller(_) => true,
            Self::Question(question) => question.strong_count() > 0,
        }
    }
}

impl Session {
    /// Asks the manager. A request that was cut off by the manager's death is sent to its successor.
    pub(crate) fn request(&self, body: &Body, descriptors: &[BorrowedFd<'_>]) -> Result<Answer, SessionError> {
        self.request_within(body, descriptors, ANSWER_TIMEOUT)
    }

    pub(crate) fn request_within(
        &self,
        body: &Body,
        descriptors: &[BorrowedFd<'_>],
        timeout: Duration,
    ) -> Result<Answer, SessionError> {
        let mut patience = Patience::new(timeout);
        let mut deaths = 0;
        loop {
            let epoch = self.epoch.load(Ordering::Acquire);
            let id = self.next_id.fetch_add(1, Ordering::Relaxed);
            let (sender, receiver) = sync_channel(1);
            lock(&self.pending).insert(id, Awaiting::Caller(sender));
            let connection = lock(&self.connection).clone();
            let sent = connection.send(&Request { id, body: body.clone() }, descriptors);
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
                    match patience.wait(receive) {
                        Err(RecvTimeoutError::Timeout) if !patience.is_over() => {}
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
                        // The thread had it in hand.
                        return answer(outcome, epoch);
                    }
                    self.is_silent.store(true, Ordering::Release);
                    return Err(SessionError::TimedOut(timeout.as_millis()));
                }
                Ok(Err(RecvTimeoutError::Disconnected)) | Err(LocalError::Closed) => {
                    if self.is_runner() {
                        // It is the one who looks for a successor.
                        return Err(LocalError::Closed.into());
                    }
                    deaths += 1;
                    if deaths == DEATHS_MAX {
                        return Err(SessionError::Died { deaths, log: self.dir.log() });
                    }
                    self.await_successor(epoch, &mut patience, timeout)?;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn await_successor(&self, epoch: u64, patience: &mut Patience, timeout: Duration) -> Result<(), SessionError> {
        while self.epoch.load(Ordering::Acquire) == epoch {
            if patience.is_over() || self.stopping.load(Ordering::Acquire) {
                return Err(SessionError::TimedOut(timeout.as_millis()));
            }
            patience.wait(std::thread::sleep);
        }
        Ok(())
    }

    /// Has the node's thread ask. Nothing is waited for; `waker` is told of the answer.
    pub(crate) fn ask(&self, body: Body, waker: Waker) -> Arc<Question> {
        let question = Arc::new(Question::new(body, waker));
        lock(&self.questions).push(Arc::downgrade(&question));
        self.kick();
        question
    }

    /// Waits until a question is answered.
    pub(crate) fn await_answer(&self, question: &Question) -> Result<(), SessionError> {
        let mut patience = Patience::new(ANSWER_TIMEOUT);
        while question.is_open() {
            if patience.is_over() || self.stopping.load(Ordering::Acquire) {
                return Err(SessionError::TimedOut(ANSWER_TIMEOUT.as_millis()));
            }
            if self.is_runner() {
                let connection = lock(&self.connection).clone();
                patience.wait(|slice| self.serve(&connection, slice))?;
            } else {
                patience.wait(|slice| question.wait(slice));
            }
        }
        Ok(())
    }

    /// Asks what this manager has not been asked yet.
    pub(super) fn ask_questions(&self, connection: &Connection) {
        let epoch = self.epoch();
        let open: Vec<Arc<Question>> = {
            let mut questions = lock(&self.questions);
            questions.retain(|question| question.upgrade().is_some_and(|question| question.is_open()));
            questions.iter().filter_map(Weak::upgrade).collect()
        };
        for question in open {
            let Some(body) = question.ask(epoch) else { continue };
            let id = self.next_id.fetch_add(1, Ordering::Relaxed);
            lock(&self.pending).insert(id, Awaiting::Question(Arc::downgrade(&question)));
            match connection.send_now(&Request { id, body }, &[]) {
                Ok(()) => continue,
                // When it reads again, or when it has a successor.
                Err(LocalError::Full | LocalError::Closed) => question.not_asked(),
                Err(error) => question.answer(Err(error.into())),
            }
            lock(&self.pending).remove(&id);
        }
    }

    /// The node's thread waits for an answer itself: a part of its turn.
    fn serve(&self, connection: &Connection, slice: Duration) -> Result<(), LocalError> {
        self.ask_questions(connection);
        let mut fds = [PollFd::new(connection, PollFlags::IN)];
        let _ = poll(&mut fds, Some(&rgaps_os::poll::timespec(slice)));
        self.read(connection)
    }
}

fn answer(outcome: RawAnswer, epoch: u64) -> Result<Answer, SessionError> {
    let (reply, descriptors) = outcome?;
    Ok(Answer { reply, descriptors: descriptors.into_iter(), epoch })
}
