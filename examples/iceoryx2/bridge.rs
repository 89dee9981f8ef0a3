//! Tells programs of iceoryx2 that a topic has a new message. They need nothing of RGAPS: they wait on the event service `rgaps/TOPIC`.
//!
//! `cargo run -p rgaps-bench --features iceoryx2 --example iceoryx2_bridge -- bytes|image|point_cloud|tensor TOPIC`

use std::error::Error;
use std::time::Duration;

use iceoryx2::prelude::{EventId, NodeBuilder, ipc};
use rgaps::dynamic::{DynamicSubscriber, Kind};
use rgaps::{Node, SubscriberQos};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [kind, topic] = arguments.as_slice() else { return Err("iceoryx2_bridge KIND TOPIC".into()) };
    let node = Node::new("iceoryx2_bridge")?;
    let subscriber = DynamicSubscriber::new(&node, topic, kind.parse::<Kind>()?, SubscriberQos::default())?;

    let iceoryx = NodeBuilder::new().create::<ipc::Service>()?;
    let name = format!("rgaps{}", subscriber.topic());
    let service = iceoryx.service_builder(&name.as_str().try_into()?).event().open_or_create()?;
    let notifier = service.notifier_builder().create()?;
    println!("ready: {name}");
    loop {
        if let Some(sample) = subscriber.wait(Duration::from_secs(1))? {
            // A listener that has not caught up loses notifications, never messages: it looks for all that are there when it wakes.
            let _ = notifier.notify_with_custom_event_id(EventId::new((sample.info().sequence % 256) as usize));
        }
    }
}
