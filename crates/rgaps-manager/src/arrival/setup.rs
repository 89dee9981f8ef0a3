//! What the manager gives to an arrival.

use std::sync::Arc;
use std::time::Duration;

use rgaps_control::qos::Exhaustion;
use rgaps_control::{HostId, TopicId, TopicKey};
use rgaps_device::{Backend, HostBuffer};
use rgaps_shm::SlotTable;

use crate::device_access::DeviceAccess;
use crate::event::Mailbox;
use crate::inbound::ArrivalControl;

/// What an arrival needs to run.
#[derive(Debug)]
pub(crate) struct ArrivalSetup {
    pub(crate) topic: TopicId,
    pub(crate) key: TopicKey,
    pub(crate) host: HostId,
    pub(crate) host_name: String,
    /// What the publishers' QoS says about a full pool.
    pub(crate) exhaustion: Option<Exhaustion>,
    pub(crate) keep_all_timeout: Duration,
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) buffer: Arc<HostBuffer>,
    pub(crate) slot_table: SlotTable,
    pub(crate) mailbox: Mailbox,
    pub(crate) control: Arc<ArrivalControl>,
    /// The least bytes of a message for which blocks are granted to the other host.
    pub(crate) landing_bytes_min: u64,
    /// The network card writes device memory itself; `None` for memory of the host, too.
    pub(crate) device_access: Option<Arc<DeviceAccess>>,
    /// The transport, and why it is not a better one.
    pub(crate) transport_text: String,
}
