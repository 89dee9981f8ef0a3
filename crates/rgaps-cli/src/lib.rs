//! The rgaps command: demo, pub, sub, topic, doctor, bench
pub mod bench;
