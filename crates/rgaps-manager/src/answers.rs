//! Sends answers to ring requests through zenoh. If the other host reads nothing, zenoh blocks the sending thread for a second. So worker
//! threads send the answers, and such a host blocks neither the manager's thread nor the connections of other hosts.
//!
//! Bounds      `THREADS` hosts that read nothing delay answers to others until zenoh closes their connections. At most `WAITING_MAX` answers wait;
//!             further requests stay in the network inbox, which has budgets.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use rgaps_os::EventFd;

/// Answers that are sent at a time.
const THREADS: usize = 8;
/// Answers that wait or are being sent.
const WAITING_MAX: usize = 64;

/// Sends an answer; it may block while the requesting host does not read.
pub(crate) type Answer = Box<dyn FnOnce() + Send>;

/// Sends answers from its threads.
#[derive(Debug)]
pub(crate) struct Answers {
    to: Sender<Answer>,
    waiting: Arc<AtomicUsize>,
}

impl Answers {
    /// Starts the threads. They end some time after this is dropped.
    pub(crate) fn start(wake: &Arc<EventFd>) -> io::Result<Self> {
        let (to, answers) = channel();
        let (answers, waiting) = (Arc::new(Mutex::new(answers)), Arc::<AtomicUsize>::default());
        for _ in 0..THREADS {
            let (answers, waiting, wake) = (answers.clone(), waiting.clone(), wake.clone());
            let named = std::thread::Builder::new().name("rgaps-answer".to_owned());
            named.spawn(move || give(&answers, &waiting, &wake))?;
        }
        Ok(Self { to, waiting })
    }

    /// Whether `give` accepts another answer. If not, `wake` is signalled as soon as it does.
    pub(crate) fn has_room(&self) -> bool {
        self.waiting.load(Ordering::Acquire) < WAITING_MAX
    }

    /// Queues an answer. Returns at once.
    pub(crate) fn give(&self, answer: Answer) {
        self.waiting.fetch_add(1, Ordering::AcqRel);
        // The threads end only after `to` is dropped.
        let _ = self.to.send(answer);
    }
}

fn give(answers: &Mutex<Receiver<Answer>>, waiting: &AtomicUsize, wake: &EventFd) {
    loop {
        let next = answers.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(answer) = next else { return };
        answer();
        if waiting.fetch_sub(1, Ordering::AcqRel) == WAITING_MAX {
            let _ = wake.signal();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_host_that_reads_no_answer_delays_no_other_and_new_room_is_signalled() {
        let wake = Arc::new(EventFd::new().unwrap());
        let answers = Answers::start(&wake).unwrap();
        let (goes_on, stands) = channel::<()>();
        let stand = |stands: Receiver<()>| -> Answer {
            Box::new(move || {
                let _ = stands.recv();
            })
        };
        answers.give(stand(stands));
        let (given, taken) = channel();
        let give = |number| {
            let given = given.clone();
            answers.give(Box::new(move || given.send(number).unwrap()));
        };
        give(1);
        assert_eq!(taken.recv(), Ok(1));
        // Now all threads are blocked.
        let held: Vec<_> = (1..THREADS).map(|_| channel::<()>()).collect();
        let (held, stands): (Vec<_>, Vec<_>) = held.into_iter().unzip();
        stands.into_iter().for_each(|stands| answers.give(stand(stands)));
        (THREADS..WAITING_MAX).for_each(give);
        assert!(!answers.has_room());
        drop((goes_on, held));
        assert!(rgaps_os::poll::readable(wake.as_ref(), Duration::from_secs(30)).unwrap());
        let rest: Vec<usize> = taken.iter().take(WAITING_MAX - THREADS).collect();
        assert_eq!(rest.len(), WAITING_MAX - THREADS);
        assert!(answers.has_room());
    }
}
