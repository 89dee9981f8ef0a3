//! Who dies when, and who sleeps: a scheduler that asks another one, but never runs a thread again whose steps are used up.
//!
//! A step is what lies between two accesses to shared words, so a thread dies before any access, as a process does. Threads that wait for
//! an end or for a wake-up are not run either. These waits are outside the words under test, and begin and end without a step.

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
    /// Nobody who lives could go on.
    is_stuck: bool,
}

struct Mortal {
    /// `None`: it lives to its end.
    steps_left: Option<u32>,
    has_ended: bool,
}

enum Until {
    Gone(Number),
    /// Until it is woken; it has looked at all positions before this one.
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

/// Runs `flow` in a thread of its own that dies after so many steps, or has come to its end by then. Returns when either has happened.
pub(super) fn live(steps: Option<u32>, flow: impl FnOnce() + Send + 'static) {
    let number = with(|fates| {
        fates.mortals.push(Mortal { steps_left: steps, has_ended: false });
        fates.mortals.len() - 1
    });
    // Shuttle's schedules wait for each thread, but for no future without a handle.
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

/// Wakes all who sleep.
pub(super) fn wake_all() {
    with(|fates| fates.waiting.retain(|_, until| !matches!(until, Until::Woken(_))));
}

/// Whether somebody who lives sleeps and has not looked at a position.
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
    assert!(!with(|fates| fates.is_stuck), "all who live wait for each other");
}

/// The scheduler that lets threads die.
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
                // Shuttle expects no panic here: one of them says it.
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
