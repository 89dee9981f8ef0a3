//! A manager's side of a topic.
//!
//! `slot_table` admits publishers and subscribers, and finishes the messages of dead publishers. `arrival_records` records what has arrived of each remote
//! publisher, and `last_received` finds the last message of each in the message table.

pub mod arrival_records;
pub mod last_received;
pub mod slot_table;
