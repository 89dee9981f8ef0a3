//! An RMW that is a layer: it exports what the distro's rmw headers declare and forwards to an inner RMW, except for publishers and
//! subscriptions of rgaps_msgs/msg/{GpuImage,GpuPointCloud,GpuTensor}, which take their messages from the core.
//!
//! ```text
//!   rcl ──▶ forward.rs ──▶ inner.rs ──▶ lib$RGAPS_INNER_RMW.so                     every entity, and descriptors of GPU topics
//!                 │                          ▲
//!                 ├──▶ publisher.rs ─────────┤  does the core know the descriptor's message?
//!                 └──▶ subscription.rs ──────┘  graph, matching, QoS
//!                        take.rs, wait.rs, event.rs ◀── notifier.rs ◀── the core: messages, in order, once their payload is on this host
//! ```
//!
//! Handles of other entities are the inner RMW's own, unchanged.

mod context;
mod descriptor;
mod entity;
mod event;
mod ffi;
mod forward;
mod gate;
mod guard_condition;
mod hook;
mod inner;
mod loans;
mod lock;
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
mod taking;
mod wait;
mod waiters;
