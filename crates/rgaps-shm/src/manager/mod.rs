//! A manager's side of a topic.
//!
//! `slot_table` admits publishers and subscribers, and finishes the messages of dead publishers. `arrived` records what has arrived of each remote
//! publisher, and `last_received` finds the last message of each in the message table.

pub mod arrived;
pub mod last_received;
pub mod slot_table;
