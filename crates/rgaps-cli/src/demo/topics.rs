//! The topics of the demo.

/// Topics of the demo.
pub(super) const TOPICS: [&str; 3] = ["demo/camera", "demo/cloud", "demo/tensor"];
