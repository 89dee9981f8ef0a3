//! The kernel prevents a reader's write into a pool: the process gets SIGSEGV.
//!
//! The test runs itself again as the child that writes.

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions

use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::atomic::Ordering;

use rgaps_device::{Choice, PoolRole, PoolSpec, open};
use rustix::process::{Resource, Rlimit, setrlimit};

const CHILD: &str = "RGAPS_TEST_WRITES_INTO_A_POOL";
const SIGSEGV: i32 = 11;

#[test]
fn a_reader_that_writes_into_a_pool_gets_sigsegv() {
    if let Ok(role) = std::env::var(CHILD) {
        write_as(if role == "writer" { PoolRole::Writer } else { PoolRole::Reader });
        return;
    }
    assert!(run("writer").success(), "the writer writes and lives");
    assert_eq!(run("reader").signal(), Some(SIGSEGV));
}

fn run(role: &str) -> std::process::ExitStatus {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "a_reader_that_writes_into_a_pool_gets_sigsegv"]).env(CHILD, role);
    child.output().unwrap().status
}

fn write_as(role: PoolRole) {
    // The crash is intended: no core file.
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) }).unwrap();
    let backend = open(Choice::Host).unwrap().backend;
    let made = backend.create_pool(&PoolSpec { name: "rgaps-fault".to_owned(), bytes: 4096 }).unwrap();
    let (description, slabs) = made.export().unwrap();
    let pool = if role == PoolRole::Writer {
        let pool = backend.import_pool(&description, slabs, role).unwrap();
        made.seal().unwrap();
        pool
    } else {
        made.seal().unwrap();
        backend.import_pool(&description, slabs, role).unwrap()
    };
    // Safe code can store through a read-only mapping only by a shared word.
    let word = pool.as_host().unwrap().mapping().atomic_u64(0).unwrap();
    word.store(1, Ordering::Relaxed);
    assert_eq!(made.shared(0, 1).unwrap().to_vec(), [1]);
}
