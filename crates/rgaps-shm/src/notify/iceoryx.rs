//! iceoryx2's event service behind the notification traits, as the paper's baseline.
//!
//! A notification sends one datagram to each listener, so its cost grows with their number. The service's limits are set here because its
//! defaults (16 listeners and notifiers, 20 nodes) are below ours.

use std::io;
use std::time::Duration;

use iceoryx2::port::listener::Listener;
use iceoryx2::port::notifier::Notifier;
use iceoryx2::prelude::{LogLevel, Node, NodeBuilder, ServiceName, ipc, set_log_level_from_env_or};
use iceoryx2::service::port_factory::event::PortFactory;

use super::{Wait, Wake};
use crate::layout::{PUBLISHERS_MAX, SUBSCRIBERS_MAX};

/// Wakes the listeners of a topic's event service.
#[derive(Debug)]
pub struct IceoryxWake {
    notifier: Notifier<ipc::Service>,
    _node: Node<ipc::Service>,
}

/// Listens to a topic's event service.
#[derive(Debug)]
pub struct IceoryxWait {
    listener: Listener<ipc::Service>,
    _node: Node<ipc::Service>,
}

impl IceoryxWake {
    /// Opens or creates the event service with this name.
    pub fn new(service: &str) -> io::Result<Self> {
        let (node, service) = open(service)?;
        let notifier = service.notifier_builder().create().map_err(io::Error::other)?;
        Ok(Self { notifier, _node: node })
    }
}

impl IceoryxWait {
    /// Opens or creates the event service with this name.
    pub fn new(service: &str) -> io::Result<Self> {
        let (node, service) = open(service)?;
        let listener = service.listener_builder().create().map_err(io::Error::other)?;
        Ok(Self { listener, _node: node })
    }
}

impl Wake for IceoryxWake {
    fn wake(&mut self) -> io::Result<()> {
        self.notifier.notify().map(|_| ()).map_err(io::Error::other)
    }
}

impl Wait for IceoryxWait {
    fn arm(&mut self) -> io::Result<()> {
        self.listener.try_wait(|_| {}).map(|_| ()).map_err(io::Error::other)
    }

    fn wait(&mut self, timeout: Duration) -> io::Result<bool> {
        let mut woken = false;
        self.listener.timed_wait(|_| woken = true, timeout).map_err(io::Error::other)?;
        Ok(woken)
    }
}

fn open(service: &str) -> io::Result<(Node<ipc::Service>, PortFactory<ipc::Service>)> {
    // Otherwise every process warns that iceoryx2 has no configuration file.
    set_log_level_from_env_or(LogLevel::Error);
    let node = NodeBuilder::new().create::<ipc::Service>().map_err(io::Error::other)?;
    let name = ServiceName::new(service).map_err(io::Error::other)?;
    let service = node
        .service_builder(&name)
        .event()
        .max_listeners(SUBSCRIBERS_MAX)
        .max_notifiers(PUBLISHERS_MAX)
        .max_nodes(SUBSCRIBERS_MAX + PUBLISHERS_MAX)
        .open_or_create()
        .map_err(io::Error::other)?;
    Ok((node, service))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_iceoryx_listener_is_woken() {
        let name = format!("rgaps/test/{}", std::process::id());
        let mut wake = IceoryxWake::new(&name).unwrap();
        let mut wait = IceoryxWait::new(&name).unwrap();
        super::super::tests::wakes(&mut wait, &mut wake);
    }
}
