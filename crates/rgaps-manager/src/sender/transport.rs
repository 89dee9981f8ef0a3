//! Which transport a sender's link takes, how it reads messages of a device, and why not in a better way.

use std::sync::Arc;

use rgaps_control::HostId;
use rgaps_device::{Backend, PayloadAccess};
use rgaps_shm::info::{Route, RouteReason};

use crate::device_access::DeviceAccess;
use crate::outbox::PostError;
use crate::rdma_devices::RdmaDevices;

/// The transport of a link, and why it is not a better one.
#[derive(Clone, Debug)]
pub(super) struct LinkTransport {
    pub(super) route: Route,
    pub(super) route_reason: RouteReason,
    pub(super) text: String,
    /// The network card reads messages in device memory itself.
    device_access: Option<Arc<DeviceAccess>>,
}

impl LinkTransport {
    pub(super) fn tcp(route_reason: RouteReason, text: String) -> Self {
        Self { route: Route::Tcp, route_reason, text, device_access: None }
    }

    /// Rdma to a host, over this network card. `is_staged`: all messages are staged, as configured.
    pub(super) fn rdma(
        devices: &RdmaDevices,
        (host, card): (HostId, &str),
        backend: &dyn Backend,
        is_staged: bool,
    ) -> Self {
        let (device_access, text) = match backend.payload_access() {
            PayloadAccess::Staged if is_staged => {
                (None, "rdma, from staging (staging = \"always\" is configured)".to_owned())
            }
            PayloadAccess::Staged => match devices.device_access(host, card, backend) {
                Ok(access) => (Some(access), "rdma, from device memory".to_owned()),
                Err(why) => (None, format!("rdma, from staging ({why})")),
            },
            PayloadAccess::Direct => (None, "rdma".to_owned()),
        };
        Self { route: Route::Rdma, route_reason: RouteReason::Best, text, device_access }
    }

    /// Whether the link sends from memory of a device.
    pub(super) fn reads_device(&self) -> bool {
        self.device_access.is_some()
    }

    /// Takes note of what ended a link. If its network card could not read device memory, the next one does without.
    pub(super) fn note_failure(&self, error: &PostError) {
        if let (PostError::DeviceMemory(why), Some(access)) = (error, &self.device_access) {
            access.give_up(why.clone());
        }
    }
}
