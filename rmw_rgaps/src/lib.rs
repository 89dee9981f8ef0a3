//! An RMW that is a layer: it exports what the distro's rmw headers declare and forwards to an inner RMW, except for publishers and
//! subscriptions of rgaps_msgs/msg/{GpuImage,GpuPointCloud,GpuTensor}, whose messages are taken from the core.
//!
//! ```text
//!   rcl ──▶ forward.rs ──▶ inner.rs ──▶ lib$RGAPS_INNER_RMW.so                     every entity, and descriptors of GPU topics
//!                 │                          ▲
//!                 ├──▶ publisher.rs ─────────┤  is what the descriptor names known to the core?
//!                 └──▶ subscription.rs ──────┘  graph, matching, QoS
//!                        take.rs, wait.rs, event.rs ◀── notifier.rs ◀── the core: messages, in order, once their payload is here
//! ```
//!
//! Handles of ordinary entities are the inner's own, untouched.

mod context;
mod descriptor;
mod event;
mod ffi;
mod forward;
mod gate;
mod hook;
mod inner;
mod loans;
mod log;
mod notifier;
mod observed;
mod own;
mod publisher;
mod rcutils;
mod replay;
mod subscription;
mod support;
mod sys;
mod take;
mod wait;
