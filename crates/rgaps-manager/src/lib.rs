//! The RGAPS host manager: publish, subscribe and device-memory managers, and the daemon rgapsd
