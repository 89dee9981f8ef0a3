//! Which device a command works with: that of its flag, else the configuration's; and what is said where it cannot be had. Where there is
//! a GPU, it is the stand-in for libcuda.

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions

mod host;

use std::process::Command;

use host::{Host, outcome};

const FAIL: &str = "RGAPS_TEST_STANDIN_FAIL";
const MISMATCH: (&str, &str) = (FAIL, "cuInit#*=803");
const NO_CONTEXT: (&str, &str) = (FAIL, "cuDevicePrimaryCtxRetain#*=46");
/// A host with the stand-in.
fn gpu_host(name: &str) -> Host {
    let host = Host::new(name);
    rgaps_standin_cuda::link_into(host.dir.path()).unwrap();
    host
}

/// `rgaps` there, with these variables.
fn on_gpu(host: &Host, arguments: &[&str], variables: &[(&str, &str)]) -> Command {
    let mut command = host.rgaps(arguments);
    command.env("LD_LIBRARY_PATH", host.dir.path()).env_remove("RGAPS_DEVICE").envs(variables.iter().copied());
    command
}

fn demo<'a>(out: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let all = ["demo", "--loopback", "--frames", "1", "--local", "1", "--remote", "1", "--out", out];
    [&all, more].concat()
}

#[test]
fn a_driver_that_is_there_and_broken_is_a_warning_and_one_that_is_absent_is_none() {
    for (variables, warns) in
        [(&[MISMATCH][..], true), (&[NO_CONTEXT], true), (&[("RGAPS_DEVICE", "host"), MISMATCH], false)]
    {
        let host = gpu_host("warns");
        let (good, _, errors) = outcome(&mut on_gpu(&host, &["topic", "list"], variables));
        assert!(good && errors.is_empty(), "{errors}");
        let log = std::fs::read_to_string(host.dir.path().join("rgapsd.log")).unwrap();
        let warning = log.lines().find(|line| line.contains(" WARN ") && line.contains(" failed: "));
        assert_eq!(warning.is_some(), warns, "{variables:?}: {log}");
    }
    if rgaps::device::cuda::Device::count().is_ok() {
        return rgaps_testing::skipped("this machine has a driver");
    }
    let host = Host::new("absent");
    let (good, _, errors) = outcome(&mut host.rgaps(&["topic", "list"]));
    assert!(good && errors.is_empty(), "{errors}");
    let log = std::fs::read_to_string(host.dir.path().join("rgapsd.log")).unwrap();
    assert!(log.contains("libcuda.so.1 is not there") && !log.contains("WARN"), "{log}");
}

#[test]
fn where_the_pools_device_is_the_managers_choice_the_client_is_told_so() {
    let host = gpu_host("managers-choice");
    let (good, _, errors) = outcome(&mut on_gpu(&host, &["topic", "list"], &[("RGAPS_DEVICE", "cuda")]));
    assert!(good, "{errors}");
    let (good, _, errors) = outcome(&mut on_gpu(&host, &["topic", "list"], &[MISMATCH]));
    assert!(!good && errors.contains("the device of the rgapsd that runs") && errors.contains("(803)"), "{errors}");
}
