//! Samples of r2r nodes for tests/ros/clients: publishes images whose content follows from their number, or checks them.
//!
//!     samples_r2r publish TOPIC COUNT SUBSCRIPTIONS CORE_SUBSCRIBERS
//!     samples_r2r subscribe TOPIC COUNT
//!     samples_r2r join TOPIC COUNT

use std::error::Error;
use std::io::BufRead;
use std::sync::mpsc::{TryRecvError, channel};
use std::time::Duration;

use futures::executor::LocalPool;
use futures::task::LocalSpawnExt;
use futures::{FutureExt, StreamExt};
use r2r::{Context, Node, QosProfile};
use rgaps::types::Image;
use rgaps_ros::r2r::{Publisher, Subscription};

#[path = "samples/mod.rs"]
mod samples;
use samples::{Checked, DEPTH, fill, picture};

const TURN: Duration = Duration::from_millis(5);

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).take_while(|argument| argument != "--ros-args").collect();
    let node = Node::create(Context::create()?, "samples_r2r", "")?;
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["publish", topic, count, subscriptions, core_subscribers] => {
            publish(node, topic, count.parse()?, subscriptions.parse()?, core_subscribers.parse()?)
        }
        ["subscribe", topic, count] => subscribe(node, topic, count.parse()?, false),
        ["join", topic, count] => subscribe(node, topic, count.parse()?, true),
        _ => {
            Err("usage: samples_r2r publish TOPIC COUNT SUBSCRIPTIONS CORE_SUBSCRIBERS | subscribe TOPIC COUNT | join TOPIC COUNT"
                .into())
        }
    }
}

fn qos() -> QosProfile {
    QosProfile::default().keep_last(DEPTH as usize)
}

fn publish(
    mut node: Node,
    topic: &str,
    count: usize,
    subscriptions: usize,
    core_subscribers: usize,
) -> Result<(), Box<dyn Error>> {
    let publisher = Publisher::<Image>::new(&mut node, topic, qos())?;
    println!("ready {}", publisher.topic_name());
    while publisher.descriptors().publisher().get_inter_process_subscription_count()? < subscriptions
        || publisher.core().subscriber_count() < core_subscribers
    {
        node.spin_once(TURN);
    }
    for number in 0..count {
        let mut loan = publisher.loan(picture(number)?)?;
        fill(&mut loan, number);
        loan.publish()?;
    }
    println!("published {count}");
    // Subscribers read to the end; the caller says when to exit.
    let (ended, is_ended) = channel();
    std::thread::spawn(move || {
        let _ = std::io::stdin().lock().read_line(&mut String::new());
        drop(ended);
    });
    while is_ended.try_recv() != Err::<(), _>(TryRecvError::Disconnected) {
        node.spin_once(TURN);
    }
    Ok(())
}

fn subscribe(mut node: Node, topic: &str, count: usize, joins: bool) -> Result<(), Box<dyn Error>> {
    let mut subscription = Subscription::<Image>::new(&mut node, topic, qos())?;
    println!("ready {}", subscription.topic_name());
    let mut pool = LocalPool::new();
    let (done, is_done) = channel();
    pool.spawner().spawn_local(
        async move {
            let mut checked = Checked::new(joins);
            while checked.samples < count {
                let Some(sample) = subscription.next().await else { break };
                checked.check(&sample);
            }
            let _ = done.send(checked.line(&subscription.statistics(), subscription.refused()));
        }
        .boxed_local(),
    )?;
    loop {
        node.spin_once(TURN);
        pool.run_until_stalled();
        if let Ok(line) = is_done.try_recv() {
            println!("{line}");
            return Ok(());
        }
    }
}
