//! Answers to ring requests, on their way to zenoh. zenoh waits, by default for 5 s, until a host that reads nothing takes its answer; so threads of
//! their own give answers, and neither the manager's thread nor the connection of another host stands still for it.
//!
//! Bounds      `THREADS` hosts that read nothing hold up answers to others until zenoh closes their connections. `WAITING_MAX` answers wait at
//!             most; the requests behind them stay in the inbox, which has budgets.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use rgaps_os::EventFd;

/// Answers that are given at a time.
const THREADS: usize = 8;
/// Answers that wait or are being given.
const WAITING_MAX: usize = 64;

/// What gives an answer; it may wait for whoever asked.
pub(crate) type Answer = Box<dyn FnOnce() + Send>;

/// Gives answers.
#[derive(Debug)]
pub(crate) struct Answers {
    to: Sender<Answer>,
    waiting: Arc<AtomicUsize>,
}

impl Answers {
    /// Its threads end some time after it.
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

    /// Whether `give` takes another one. `wake` is signalled when it does again.
    pub(crate) fn has_room(&self) -> bool {
        self.waiting.load(Ordering::Acquire) < WAITING_MAX
    }

    /// Has an answer given, soon. Waits for nothing.
    pub(crate) fn give(&self, answer: Answer) {
        self.waiting.fetch_add(1, Ordering::AcqRel);
        // The threads end after `to` does.
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
    fn who_takes_no_answer_holds_up_no_other_and_room_is_told_of() {
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
        // Now all threads stand.
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
