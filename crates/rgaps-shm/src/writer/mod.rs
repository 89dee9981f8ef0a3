//! A publisher's side of a topic.
//!
//! `port` loans, publishes and reclaims messages. `pool` allocates their blocks, and with `shared_pool`
//! and `frozen` several ports of a process allocate in one pool. If there is no space, `room` decides what the publisher gives up,
//! `droppable` names the subscribers whose unread messages it may drop, and `space` has the wait and the errors. `subscribers` reads the words of all
//! subscribers and wakes them; `batch` wakes them once for several messages. `pending` is a published message whose bytes a stream has not written
//! yet. `late` publishes messages of other hosts that are older than some subscribers.

pub mod batch;
mod droppable;
mod frozen;
mod late;
pub mod pending;
pub mod pool;
pub mod port;
mod room;
pub mod shared_pool;
pub mod space;
pub mod subscribers;
