//! The `rgaps` command.

#![forbid(unsafe_code)]

use clap::Parser;
use rgaps_cli::bench::{self, Effort};

#[derive(Parser)]
enum Command {
    NotifyWaiter(bench::notify::WaiterArgs),
    Alloc,
    Notify,
}
#[derive(Parser)]
enum Top { #[command(subcommand)] Bench(Command) }

fn main() {
    let Top::Bench(command) = Top::parse();
    match command {
        Command::NotifyWaiter(a) => bench::notify::wait(&a).unwrap(),
        Command::Alloc => for r in bench::alloc::run(Effort::Full).unwrap() { println!("{} {} {:.1} {:.1} {:.3}", r.bench, r.case, r.ours, r.theirs, r.ratio); },
        Command::Notify => for r in bench::notify::run(Effort::Full).unwrap() { println!("{} {} {:.1} {:.1} {:.3}", r.bench, r.case, r.ours, r.theirs, r.ratio); },
    }
}
