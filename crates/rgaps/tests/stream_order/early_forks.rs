//! Forks that keep the GPU of a dead process, although they were made before its publisher, or although its lock file is gone.

use std::io::Write;
use std::path::PathBuf;

use rgaps::Node;
use rgaps::types::Bytes;
use rgaps_standin_cuda::Control;
use rgaps_testing::{Child, Watchdog, is_again, kill_9};
use rustix::process::{Pid, Signal, kill_process};

use super::bench::{Bench, LONG, MIB, Source, TOPIC, on_standin, until};
use super::{ForkedProducer, fork_that_keeps_the_gpu, log, process, the_manager, ticked};

/// A process that forks, as `how` says; its forked child ends when its input does.
fn forking(bench: &Bench, how: &str) -> Child {
    process(bench, "early_forks::role_of_a_process_that_forks_early", ("RGAPS_TEST_EARLY_FORK", how))
}

#[test]
#[ignore = "started by the tests of this file"]
fn role_of_a_process_that_forks_early() {
    let Ok(how) = std::env::var("RGAPS_TEST_EARLY_FORK") else { return };
    assert!(is_again());
    let _watchdog = Watchdog::new(LONG);
    let gpu = Control::load();
    let first = Node::new("first").unwrap();
    fork_that_keeps_the_gpu();
    println!("forked");
    let second = (how == "between nodes").then(|| Node::new("second").unwrap());
    let node = second.as_ref().unwrap_or(&first);
    if how == "before its slots" {
        std::io::stdin().read_line(&mut String::new()).unwrap();
    }
    let publisher = node.publisher::<Bytes>(if how == "alone" { "alone" } else { TOPIC }).unwrap();
    let (source, stream) = (Source::new(node, MIB), node.stream().unwrap());
    gpu.hold();
    publisher.push_on(&Bytes::new(MIB), &source.part, &stream).unwrap();
    println!("pushed");
    loop {
        std::thread::park();
    }
}

#[test]
#[ignore = "started by the tests of this file"]
fn role_of_a_process_that_forks_often() {
    if std::env::var_os("RGAPS_TEST_OFTEN").is_none() {
        return;
    }
    assert!(is_again());
    let _watchdog = Watchdog::new(LONG);
    let gpu = Control::load();
    let node = Node::new("often").unwrap();
    let publisher = node.publisher::<Bytes>(TOPIC).unwrap();
    let (source, stream) = (Source::new(&node, MIB), node.stream().unwrap());
    println!("ready");
    for line in std::io::stdin().lines().map(Result::unwrap) {
        // An answer comes over the connection with the latest lock file.
        node.topics().unwrap();
        if line == "push" {
            gpu.hold();
            publisher.push_on(&Bytes::new(MIB), &source.part, &stream).unwrap();
            println!("pushed");
        } else {
            println!("forked {}.", fork_that_keeps_the_gpu());
        }
    }
    // Its children end with its input; it is killed.
    loop {
        std::thread::park();
    }
}

/// The process has pushed a message, and dies.
fn dies(bench: &Bench, mut child: Child) -> ForkedProducer {
    child.output_after("pushed").expect("it pushes");
    let input = child.std().stdin.take();
    let sample = bench.subscriber.take_on(&bench.stream).unwrap().unwrap();
    child.kill().unwrap();
    ticked(bench);
    ForkedProducer { child, input, sample }
}

fn lock_files(bench: &Bench) -> Vec<PathBuf> {
    let paths = std::fs::read_dir(bench.dir.path()).unwrap().flatten().map(|file| file.path());
    paths.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("client-")).collect()
}

/// Removes all lock files, and waits until the clients that are not stopped have new ones.
fn removes_lock_files(bench: &Bench, running: usize) {
    lock_files(bench).iter().for_each(|path| std::fs::remove_file(path).unwrap());
    until(|| lock_files(bench).len() == running);
    // The manager has recorded the last of them.
    ticked(bench);
}

fn has_a_successor(bench: &Bench, manager: Pid) {
    kill_process(manager, Signal::KILL).unwrap();
    until(|| log(bench).matches("rgapsd serves").count() == 2);
    ticked(bench);
}

#[test]
fn a_fork_made_before_the_publishers_node_keeps_the_messages_of_the_dead_pending() {
    if !on_standin(&[]) {
        return;
    }
    let bench = Bench::new(8 * MIB);
    let producer = dies(&bench, forking(&bench, "between nodes"));
    producer.stays_pending_until_the_fork_ends(&bench);
}

#[test]
fn a_fork_is_known_though_its_parent_without_slots_lost_its_lock_file() {
    if !on_standin(&[]) {
        return;
    }
    let bench = Bench::new(8 * MIB);
    let mut child = forking(&bench, "before its slots");
    child.output_after("forked").expect("it forks");
    removes_lock_files(&bench, 2);
    writeln!(child.std().stdin.as_mut().unwrap(), "go on").unwrap();
    let producer = dies(&bench, child);
    producer.stays_pending_until_the_fork_ends(&bench);
}

#[test]
fn a_successor_knows_a_fork_of_the_dead_whose_lock_file_was_removed() {
    if !on_standin(&[]) {
        return;
    }
    let bench = Bench::new(8 * MIB);
    let manager = the_manager(&bench);
    let mut producer = ForkedProducer::of(&bench);
    producer.dies(&bench);
    removes_lock_files(&bench, 1);
    has_a_successor(&bench, manager);
    producer.stays_pending_until_the_fork_ends(&bench);
}

#[test]
fn a_successor_knows_a_fork_of_a_stopped_process_that_lost_its_lock_file_and_died() {
    if !on_standin(&[]) {
        return;
    }
    let bench = Bench::new(8 * MIB);
    let manager = the_manager(&bench);
    let mut producer = ForkedProducer::of(&bench);
    producer.child.stop().unwrap();
    removes_lock_files(&bench, 1);
    producer.dies(&bench);
    has_a_successor(&bench, manager);
    producer.stays_pending_until_the_fork_ends(&bench);
}

#[test]
fn a_topic_that_a_fork_of_the_dead_keeps_is_refused_by_that_reason() {
    if !on_standin(&[]) {
        return;
    }
    let bench = Bench::new(8 * MIB);
    let manager = the_manager(&bench);
    let mut child = forking(&bench, "alone");
    child.output_after("pushed").expect("it pushes");
    let input = child.std().stdin.take();
    child.kill().unwrap();
    until(|| log(&bench).contains("a process forked from it still has its GPU open"));
    has_a_successor(&bench, manager);
    let refused = bench.node.publisher::<Bytes>("alone").unwrap_err().to_string();
    assert!(refused.contains(&format!("process {} has ended", child.id())), "{refused}");
    assert!(refused.contains("end the forked process"), "{refused}");
    drop(input);
    until(|| bench.node.publisher::<Bytes>("alone").is_ok());
}

#[test]
fn the_first_of_many_forks_is_known_though_each_has_another_connection() {
    if !on_standin(&[]) {
        return;
    }
    let bench = Bench::new(8 * MIB);
    let mut child = process(&bench, "early_forks::role_of_a_process_that_forks_often", ("RGAPS_TEST_OFTEN", "1"));
    child.output_after("ready").expect("it publishes");
    let forks: Vec<u32> = (0..7)
        .map(|_| {
            writeln!(child.std().stdin.as_mut().unwrap(), "fork").unwrap();
            let said = child.output_after("forked ").expect("it forks");
            lock_files(&bench).iter().for_each(|path| std::fs::remove_file(path).unwrap());
            until(|| lock_files(&bench).len() == 2);
            said.split('.').next().unwrap().trim().parse().unwrap()
        })
        .collect();
    forks[1..].iter().for_each(|fork| kill_9(*fork).unwrap());
    writeln!(child.std().stdin.as_mut().unwrap(), "push").unwrap();
    let producer = dies(&bench, child);
    producer.stays_pending_until_the_fork_ends(&bench);
}
