//! What the ROS clients of RGAPS do alike, without ROS: rclcpp (through rgaps-c), rclpy (through rgaps-py), rclrs and r2r (rgaps-ros), and the RMW
//! layer. A client keeps what only its library can do: declare parameters, publish, call back, log.
//!
//! ```text
//!   ROS profile ──qos──▶ what the core offers or requests ◀──parameters── values that the client declared
//!   ROS message ──descriptor──▶ handle ──payloads──▶ sample | nothing | refusal ──refusals──▶ log line, once
//!   statistics of the core ──status──▶ a status on /diagnostics
//! ```

#![forbid(unsafe_code)]

pub mod buffers;
pub mod descriptor;
pub mod parameters;
pub mod payloads;
pub mod qos;
pub mod refusals;
pub mod status;
