//! Publishers and subscribers without their types: all that happens between a node and its host's manager, and in a topic's segment.
//!
//! ```text
//!  typed faces     Node ──────── Publisher<T>, Loan<T>, Pool ──────── Subscriber<T>, Sample<T>
//!  this module     node          publisher, loan, batch, shared_pool  taker, sample, subscriber, pools, take_by_handle, tasks
//!                    └─ session: requests, notices, hand-back; knows its `members` by the trait `Endpoint`
//! ```
//!
//! A file imports only files that are below it in this order: publisher and subscriber; node; session; members; attachment, completions; errors.

pub(crate) mod answer;
pub(crate) mod async_request;
pub(crate) mod attachment;
pub(crate) mod batch;
pub(crate) mod by_publisher;
pub(crate) mod completions;
pub(crate) mod encode;
pub(crate) mod error;
pub(crate) mod filling;
pub(crate) mod hand_back;
pub(crate) mod hello;
pub(crate) mod idle;
pub(crate) mod loan;
pub(crate) mod maintained;
pub(crate) mod members;
pub(crate) mod node;
pub(crate) mod noticed;
pub(crate) mod open_requests;
pub(crate) mod pool_share;
pub(crate) mod pools;
pub(crate) mod publish_error;
pub(crate) mod publisher;
pub(crate) mod sample;
pub(crate) mod session;
pub(crate) mod shared_pool;
pub(crate) mod sleepers;
pub(crate) mod subscriber;
pub(crate) mod take_by_handle;
pub(crate) mod take_error;
pub(crate) mod taker;
pub(crate) mod tasks;
