//! Kills threads, and lets them sleep: a scheduler around another one that never again runs a thread whose steps are used up.
//!
//! A step is the code between two accesses to shared words, so a thread can die before any access, like a process. Threads that wait for another
//! thread's end or for a wake-up do not run either. These waits are not part of the words under test, and begin and end without a step.

use std::cell::RefCell;
use std::collections::HashMap;

use shuttle::current::{TaskId, me};
use shuttle::scheduler::{Schedule, Scheduler, Task};
use shuttle::{future, thread};

/// Number of a mortal thread in its schedule.
type Number = usize;

#[derive(Default)]
struct Fates {
    mortals: Vec<Mortal>,
    numbers: HashMap<TaskId, Number>,
    waiting: HashMap<TaskId, Until>,
    /// No living thread could run.
    is_stuck: bool,
}

struct Mortal {
    /// `None`: it runs to its end.
    steps_left: Option<u32>,
    has_ended: bool,
}

enum Until {
    Gone(Number),
    /// Until it is woken. It has looked at all positions before this one.
    Woken(u64),
}

impl Fates {
    fn is_gone(&self, number: Number) -> bool {
        let mortal = &self.mortals[number];
        mortal.has_ended || mortal.steps_left == Some(0)
    }

    fn is_dead(&self, task: TaskId) -> bool {
        self.numbers.get(&task).is_some_and(|number| self.mortals[*number].steps_left == Some(0))
    }

    fn can_go_on(&self, task: TaskId) -> bool {
        let waits = match self.waiting.get(&task) {
            Some(Until::Gone(number)) => !self.is_gone(*number),
            Some(Until::Woken(_)) => true,
            None => false,
        };
        !waits && !self.is_dead(task)
    }
}

thread_local! {
    static FATES: RefCell<Fates> = RefCell::default();
}

fn with<T>(change: impl FnOnce(&mut Fates) -> T) -> T {
    FATES.with(|fates| change(&mut fates.borrow_mut()))
}

/// Runs `flow` in a thread of its own that dies after `steps` steps, unless it has ended by then. Returns when it has died or ended.
pub(super) fn live(steps: Option<u32>, flow: impl FnOnce() + Send + 'static) {
    let number = with(|fates| {
        fates.mortals.push(Mortal { steps_left: steps, has_ended: false });
        fates.mortals.len() - 1
    });
    // A schedule waits for every thread, but not for a future without a handle.
    drop(future::spawn(async move {
        with(|fates| fates.numbers.insert(me(), number));
        flow();
        with(|fates| fates.mortals[number].has_ended = true);
    }));
    wait(Until::Gone(number));
}

/// Sleeps until `wake_all`, having looked at all positions before `next`.
pub(super) fn sleep(next: u64) {
    wait(Until::Woken(next));
}

/// Wakes all sleeping threads.
pub(super) fn wake_all() {
    with(|fates| fates.waiting.retain(|_, until| !matches!(until, Until::Woken(_))));
}

/// Whether a living thread sleeps and has not looked at a position.
pub(super) fn is_slept_through(position: u64) -> bool {
    with(|fates| {
        let has_missed_it = |until: &Until| matches!(until, Until::Woken(next) if *next <= position);
        fates.waiting.iter().any(|(task, until)| has_missed_it(until) && !fates.is_dead(*task))
    })
}

fn wait(until: Until) {
    with(|fates| fates.waiting.insert(me(), until));
    thread::yield_now();
    with(|fates| fates.waiting.remove(&me()));
    assert!(!with(|fates| fates.is_stuck), "all living threads wait for each other");
}

/// The scheduler that kills threads.
pub(super) struct Mortality<S>(pub(super) S);

impl<S: Scheduler> Scheduler for Mortality<S> {
    fn new_execution(&mut self) -> Option<Schedule> {
        with(|fates| *fates = Fates::default());
        self.0.new_execution()
    }

    fn next_task(&mut self, tasks: &[&Task], current: Option<TaskId>, is_yielding: bool) -> Option<TaskId> {
        with(|fates| {
            let can_go_on = |fates: &Fates| -> Vec<&Task> {
                tasks.iter().copied().filter(|task| fates.can_go_on(task.id())).collect()
            };
            let mut living = can_go_on(fates);
            if living.is_empty() {
                // Shuttle expects no panic here, so let a thread report it.
                fates.is_stuck = true;
                fates.waiting.clear();
                living = can_go_on(fates);
            }
            let next = self.0.next_task(&living, current, is_yielding)?;
            if let Some(number) = fates.numbers.get(&next)
                && let Some(steps) = &mut fates.mortals[*number].steps_left
            {
                *steps -= 1;
            }
            Some(next)
        })
    }

    fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }
}
