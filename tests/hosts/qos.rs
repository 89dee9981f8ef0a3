//! QoS.
