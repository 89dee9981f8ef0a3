//! Counters on /diagnostics, once a second: a status for each publisher and subscription of an rclrs node.
//!
//! Feature `diagnostics`: needs the message crates of diagnostic_msgs and std_msgs in the sourced environment. Without it nothing is published.

#[cfg(not(feature = "diagnostics"))]
use rgaps_ros_policy::status::Status;
use std::any::Any;

/// Keeps an endpoint reported until it is dropped.
pub(crate) type Reporting = Box<dyn Any + Send + Sync>;

#[cfg(not(feature = "diagnostics"))]
pub(crate) fn report(
    _: &rclrs::Node,
    _: impl Fn(&str, &[u64]) -> Option<Status> + Send + Sync + 'static,
) -> Result<Option<Reporting>, crate::Error> {
    Ok(None)
}

#[cfg(feature = "diagnostics")]
pub(crate) use with_messages::report;

#[cfg(feature = "diagnostics")]
mod with_messages {
    use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
    use std::time::Duration;

    use rclrs::{Clock, IntoPrimitiveOptions, Node, NodeState, Publisher, Timer};
    use ros_env::builtin_interfaces::msg::Time;
    use ros_env::diagnostic_msgs::msg::{DiagnosticArray, DiagnosticStatus, KeyValue};

    use rgaps_ros_policy::status::Status;

    use super::Reporting;
    use crate::Error;

    const EVERY: Duration = Duration::from_secs(1);

    /// The nodes' diagnostics; their endpoints keep them alive.
    static NODES: Mutex<Vec<(Weak<NodeState>, Weak<Diagnostics>)>> = Mutex::new(Vec::new());

    /// The diagnostics of one node.
    struct Diagnostics {
        node: String,
        clock: Clock,
        publisher: Publisher<DiagnosticArray>,
        endpoints: Mutex<Vec<Weak<Endpoint>>>,
        timer: OnceLock<Timer>,
    }

    struct Endpoint {
        status: Box<dyn Fn(&str, &[u64]) -> Option<Status> + Send + Sync>,
        /// Counters of the last status.
        before: Mutex<Vec<u64>>,
    }

    /// Reports an endpoint until the returned object is dropped. `status` gets the node's name and the counters of the last status.
    pub(crate) fn report(
        node: &Node,
        status: impl Fn(&str, &[u64]) -> Option<Status> + Send + Sync + 'static,
    ) -> Result<Option<Reporting>, Error> {
        let diagnostics = Diagnostics::of(node).map_err(|error| Error::ros("/diagnostics", error))?;
        let endpoint = Arc::new(Endpoint { status: Box::new(status), before: Mutex::default() });
        lock(&diagnostics.endpoints).push(Arc::downgrade(&endpoint));
        Ok(Some(Box::new((endpoint, diagnostics))))
    }

    impl Diagnostics {
        fn of(node: &Node) -> Result<Arc<Self>, rclrs::RclrsError> {
            let mut nodes = lock(&NODES);
            nodes.retain(|(node, diagnostics)| node.strong_count() > 0 && diagnostics.strong_count() > 0);
            let known = nodes.iter().find(|(known, _)| std::ptr::eq(known.as_ptr(), Arc::as_ptr(node)));
            if let Some(known) = known.and_then(|(_, diagnostics)| diagnostics.upgrade()) {
                return Ok(known);
            }
            let made = Arc::new(Self {
                node: node.fully_qualified_name(),
                clock: node.get_clock(),
                publisher: node.create_publisher("/diagnostics".keep_last(1))?,
                endpoints: Mutex::default(),
                timer: OnceLock::new(),
            });
            let weak = Arc::downgrade(&made);
            let tick = move || {
                if let Some(diagnostics) = weak.upgrade() {
                    diagnostics.publish();
                }
            };
            let _ = made.timer.set(node.create_timer_repeating(EVERY, tick)?);
            nodes.push((Arc::downgrade(node), Arc::downgrade(&made)));
            Ok(made)
        }

        fn publish(&self) {
            let endpoints: Vec<_> = {
                let mut endpoints = lock(&self.endpoints);
                endpoints.retain(|endpoint| endpoint.strong_count() > 0);
                endpoints.iter().filter_map(Weak::upgrade).collect()
            };
            let mut array = DiagnosticArray::default();
            let now = self.clock.now().nsec;
            array.header.stamp = Time {
                sec: i32::try_from(now / 1_000_000_000).unwrap_or(i32::MAX),
                nanosec: u32::try_from(now % 1_000_000_000).unwrap_or_default(),
            };
            array.status = endpoints.iter().filter_map(|endpoint| endpoint.message(&self.node)).collect();
            if !array.status.is_empty() {
                // There is nowhere to report a failure; readers notice that the statuses stop.
                let _ = self.publisher.publish(array);
            }
        }
    }

    impl Endpoint {
        fn message(&self, node: &str) -> Option<DiagnosticStatus> {
            let mut before = lock(&self.before);
            let status = (self.status)(node, before.as_slice())?;
            *before = status.values();
            let value = |(key, value): &(&str, u64)| KeyValue { key: (*key).to_owned(), value: value.to_string() };
            Some(DiagnosticStatus {
                level: if status.is_warning { DiagnosticStatus::WARN } else { DiagnosticStatus::OK },
                name: status.name,
                message: status.message,
                hardware_id: "rgaps".to_owned(),
                values: status.counters.iter().map(value).collect(),
            })
        }
    }

    fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
