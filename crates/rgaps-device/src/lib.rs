//! Device memory for RGAPS behind one trait: pools, copies, streams and events
