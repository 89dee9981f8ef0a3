//! A program of iceoryx2 alone: it is told of each message of an RGAPS topic, by the event service that bridge.rs notifies.
//!
//! `cargo run -p rgaps-bench --features iceoryx2 --example iceoryx2_listen -- /TOPIC COUNT`

use std::error::Error;
use std::time::{Duration, Instant};

use iceoryx2::prelude::{NodeBuilder, ipc};

const WAIT: Duration = Duration::from_secs(30);

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [topic, count] = arguments.as_slice() else { return Err("iceoryx2_listen /TOPIC COUNT".into()) };
    let node = NodeBuilder::new().create::<ipc::Service>()?;
    let name = format!("rgaps{topic}");
    let service = node.service_builder(&name.as_str().try_into()?).event().open_or_create()?;
    let listener = service.listener_builder().create()?;
    println!("ready: {name}");
    let (count, mut told) = (count.parse::<usize>()?, 0);
    let mut since = Instant::now();
    while told < count {
        // The wait may end early without an event.
        let before = told;
        listener.timed_wait(
            |event| {
                println!("message {}", event.id.as_value());
                told += 1;
            },
            WAIT,
        )?;
        if told > before {
            since = Instant::now();
        } else if since.elapsed() >= WAIT {
            return Err("nothing in 30 s: does the bridge run?".into());
        }
    }
    Ok(())
}
