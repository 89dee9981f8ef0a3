//! Samples of rclrs nodes for tests/ros/clients: publishes images whose content follows from their number, or checks them.
//!
//!     samples_rclrs publish TOPIC COUNT SUBSCRIPTIONS CORE_SUBSCRIBERS
//!     samples_rclrs subscribe TOPIC COUNT
//!     samples_rclrs join TOPIC COUNT
//!     samples_rclrs both TOPIC COUNT

use std::error::Error;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rclrs::{Context, CreateBasicExecutor, Executor, IntoPrimitiveOptions, Node, SpinOptions};
use rgaps::types::Image;
use rgaps_ros::rclrs::{Publisher, Subscription};

#[path = "samples/mod.rs"]
mod samples;
type Failed = Box<dyn Error + Send + Sync>;

use samples::{Checked, DEPTH, fill, picture};

fn main() -> Result<(), Failed> {
    let arguments: Vec<String> = std::env::args().skip(1).take_while(|argument| argument != "--ros-args").collect();
    let executor = Context::default_from_env()?.create_basic_executor();
    let node = executor.create_node("samples_rclrs")?;
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["publish", topic, count, subscriptions, core_subscribers] => {
            publish(executor, &node, topic, count.parse()?, subscriptions.parse()?, core_subscribers.parse()?)
        }
        ["subscribe", topic, count] => subscribe(executor, &node, topic, count.parse()?, false),
        ["join", topic, count] => subscribe(executor, &node, topic, count.parse()?, true),
        ["both", topic, count] => {
            let (node, topic, count) = (node.clone(), topic.to_owned(), count.parse()?);
            let (subscription, told) = subscription(&node, &topic, count, false)?;
            let publisher = Publisher::<Image>::new(&node, topic.as_str().keep_last(DEPTH))?;
            // A second publisher on the topic, which shares the parameters.
            let second = Publisher::<Image>::new(&node, topic.as_str().keep_last(DEPTH))?;
            let publishing = std::thread::spawn(move || publish_all(&publisher, count, 1, 1));
            drop(second);
            report(executor, &subscription, told)?;
            publishing.join().map_err(|_| "the publisher panicked")?
        }
        _ => Err(
            "usage: samples_rclrs publish TOPIC COUNT SUBSCRIPTIONS CORE_SUBSCRIBERS | subscribe TOPIC COUNT | join TOPIC COUNT | both TOPIC COUNT"
                .into(),
        ),
    }
}

fn publish(
    mut executor: Executor,
    node: &Node,
    topic: &str,
    count: usize,
    subscriptions: usize,
    core_subscribers: usize,
) -> Result<(), Failed> {
    let publisher = Publisher::<Image>::new(node, topic.keep_last(DEPTH))?;
    println!("ready {}", publisher.topic_name());
    let commands = executor.commands().clone();
    let publishing = std::thread::spawn(move || {
        let published = publish_all(&publisher, count, subscriptions, core_subscribers);
        // Subscribers read to the end; the caller says when to exit.
        let _ = std::io::stdin().read_line(&mut String::new());
        commands.halt_spinning();
        published
    });
    executor.spin(SpinOptions::default());
    publishing.join().map_err(|_| "the publisher panicked")?
}

fn publish_all(
    publisher: &Publisher<Image>,
    count: usize,
    subscriptions: usize,
    core_subscribers: usize,
) -> Result<(), Failed> {
    while publisher.descriptors().publisher().get_subscription_count()? < subscriptions
        || publisher.core().subscriber_count() < core_subscribers
    {
        std::thread::sleep(Duration::from_millis(1));
    }
    for number in 0..count {
        let mut loan = publisher.loan(picture(number)?)?;
        fill(&mut loan, number);
        loan.publish()?;
    }
    println!("published {count}");
    Ok(())
}

type Told = (Arc<Mutex<Checked>>, std::sync::mpsc::Receiver<()>);

fn subscription(node: &Node, topic: &str, count: usize, joins: bool) -> Result<(Subscription<Image>, Told), Failed> {
    let checked = Arc::new(Mutex::new(Checked::new(joins)));
    let (done, is_done): (Sender<()>, _) = channel();
    let in_callback = checked.clone();
    let subscription = Subscription::<Image>::new(node, topic.keep_last(DEPTH), move |sample| {
        let mut checked = in_callback.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if checked.samples == count {
            return; // The stream goes on after the last sample that is checked.
        }
        checked.check(&sample);
        if checked.samples == count {
            let _ = done.send(());
        }
    })?;
    println!("ready {}", subscription.topic_name());
    Ok((subscription, (checked, is_done)))
}

fn subscribe(executor: Executor, node: &Node, topic: &str, count: usize, joins: bool) -> Result<(), Failed> {
    let (subscription, told) = subscription(node, topic, count, joins)?;
    report(executor, &subscription, told)
}

fn report(mut executor: Executor, subscription: &Subscription<Image>, (checked, is_done): Told) -> Result<(), Failed> {
    let commands = executor.commands().clone();
    let ending = std::thread::spawn(move || {
        let _ = is_done.recv();
        commands.halt_spinning();
    });
    executor.spin(SpinOptions::default());
    ending.join().map_err(|_| "a thread panicked")?;
    let checked = checked.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    println!("{}", checked.line(&subscription.statistics(), subscription.refused()));
    Ok(())
}
