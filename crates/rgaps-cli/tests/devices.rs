//! The device of a command: that of its flag, else the configuration's; and the error if it is unavailable. The GPU here is the stand-in for
//! libcuda.

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions

mod host;

use std::process::Command;

use host::{Host, outcome};

const FAIL: &str = "RGAPS_TEST_STANDIN_FAIL";
const MISMATCH: (&str, &str) = (FAIL, "cuInit#*=803");
const NO_CONTEXT: (&str, &str) = (FAIL, "cuDevicePrimaryCtxRetain#*=46");
const UNKNOWN: &str = "cuda:GPU-00000000-0000-0000-0000-000000000009";

/// A host with the stand-in for libcuda.
fn gpu_host(name: &str) -> Host {
    let host = Host::new(name);
    rgaps_standin_cuda::link_into(host.dir.path()).unwrap();
    host
}

/// Runs `rgaps` there, with these variables.
fn on_gpu(host: &Host, arguments: &[&str], variables: &[(&str, &str)]) -> Command {
    let mut command = host.rgaps(arguments);
    command.env("LD_LIBRARY_PATH", host.dir.path()).env_remove("RGAPS_DEVICE").envs(variables.iter().copied());
    command
}

/// The smallest possible demo.
fn demo<'a>(out: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let all = ["demo", "--loopback", "--frames", "1", "--local", "1", "--remote", "1", "--out", out];
    [&all, more].concat()
}

#[test]
fn without_a_flag_the_demo_works_with_the_device_of_the_configuration() {
    let host = gpu_host("demo-device");
    let out = host.dir.path().join("out");
    let file = host.dir.path().join("config.toml");
    std::fs::write(&file, "device = \"cuda\"").unwrap();
    let of_file = ("RGAPS_CONFIG", file.to_str().unwrap());
    let on_device = "from the device, to check them by the CPU";
    for (flags, variables, is_on_device) in [
        (&[][..], &[("RGAPS_DEVICE", "cuda")][..], true),
        (&[], &[("RGAPS_DEVICE", "host")], false),
        (&[], &[of_file], true),
        (&["--device", "host"], &[("RGAPS_DEVICE", "cuda")], false),
    ] {
        let (good, said, errors) = outcome(&mut on_gpu(&host, &demo(out.to_str().unwrap(), flags), variables));
        assert!(good && errors.is_empty(), "{said}{errors}");
        assert_eq!(said.contains(on_device), is_on_device, "{flags:?} {variables:?}: {said}");
    }
}

#[test]
fn commands_with_their_own_hosts_refuse_a_missing_device_before_anything_else() {
    let host = gpu_host("refuse-device");
    let commands = [&demo("nowhere/out", &[])[..], &["two-hosts", "--loopback"], &["bench", "e2e", "--quick"]];
    for command in commands {
        for (device, reason) in [("cuda:99", "there is no device 99"), (UNKNOWN, "is not among the 1")] {
            let (good, said, errors) = outcome(&mut on_gpu(&host, command, &[("RGAPS_DEVICE", device)]));
            assert!(!good && said.is_empty() && errors.contains(reason), "{command:?}: {said}{errors}");
            assert!(errors.contains("RGAPS_DEVICE=host") && errors.lines().count() == 1, "{errors}");
            let (good, said, by_flag) = outcome(&mut on_gpu(&host, &[command, &["--device", device]].concat(), &[]));
            assert!(!good && said.is_empty() && by_flag == errors, "{command:?}: {said}{by_flag}");
        }
        let (good, said, errors) =
            outcome(&mut on_gpu(&host, &[command, &["--device", "cuda:nonsense"]].concat(), &[]));
        assert!(!good && said.is_empty() && errors.contains("no device is named \"cuda:nonsense\""), "{errors}");
    }
    let (good, said, errors) = outcome(&mut on_gpu(&host, &["two-hosts", "--transport", "udp"], &[]));
    assert!(!good && said.is_empty() && errors.contains("auto, tcp, rdma"), "{errors}");
}

#[test]
fn a_bench_with_host_and_gpu_variants_follows_the_configured_device() {
    let host = gpu_host("bench-device");
    for variables in [&[("RGAPS_DEVICE", "cuda")][..], &[("RGAPS_DEVICE", "auto")], &[]] {
        for bench in ["e2e", "paper"] {
            let (good, _, errors) = outcome(&mut on_gpu(&host, &["bench", bench, "--quick"], variables));
            // The GPU bench, which refuses to measure the stand-in.
            assert!(!good && errors.contains("stand-in for libcuda"), "{bench} {variables:?}: {errors}");
        }
    }
}

#[test]
fn the_demo_ends_when_one_of_its_processes_fails() {
    let host = gpu_host("demo-fails");
    let out = host.dir.path().join("out");
    let variables = [("RGAPS_DEVICE", "cuda"), (FAIL, "cuMemCreate#*=2")];
    let (good, _, errors) = outcome(&mut on_gpu(&host, &demo(out.to_str().unwrap(), &[]), &variables));
    let last = errors.lines().last().unwrap_or_default();
    assert!(!good && errors.contains("are not to be had"), "{errors}");
    assert!(last.starts_with("rgaps: the publisher of the demo has failed, see above (exit status: 1)"), "{errors}");
}

/// The doctor's GPU finding: what it found, the verdict, the remedy.
fn doctor(host: &Host, variables: &[(&str, &str)]) -> (bool, [String; 3]) {
    let (good, said, errors) = outcome(&mut on_gpu(host, &["--json", "doctor"], variables));
    let findings: Vec<serde_json::Value> = serde_json::from_str(&said).unwrap_or_else(|_| panic!("{said}{errors}"));
    let gpu = findings.iter().find(|finding| finding["what"] == "GPU").unwrap();
    // As tests/gpu/run finds it, without a JSON parser.
    assert!(said.contains(r#"{"what":"GPU","found":""#) && !gpu["found"].as_str().unwrap().contains('"'), "{said}");
    (good, ["found", "verdict", "remedy"].map(|key| gpu[key].as_str().unwrap().to_owned()))
}

#[test]
fn the_doctor_opens_the_device_of_the_configuration() {
    let host = gpu_host("doctor-device");
    for variables in [&[][..], &[("RGAPS_DEVICE", "cuda")], &[("RGAPS_DEVICE", "host")]] {
        let (_, [found, verdict, remedy]) = doctor(&host, variables);
        assert!(found.starts_with("CUDA 12.8; cuda:0 ") && verdict == "ok" && remedy.is_empty(), "{found} {remedy}");
    }
    let broken = [
        (&[("RGAPS_DEVICE", "cuda:99")][..], "there is no device 99", "a device that is there"),
        (&[("RGAPS_DEVICE", UNKNOWN)], "is not among the 1", "a device that is there"),
        (&[("RGAPS_DEVICE", "cuda"), MISMATCH], "(803)", "reboot"),
        (&[("RGAPS_DEVICE", "cuda"), (FAIL, "cuInit#*=34")], "(34)", "LD_LIBRARY_PATH"),
        (&[("RGAPS_DEVICE", "cuda"), (FAIL, "cuInit#*=100")], "(100)", "CUDA_VISIBLE_DEVICES"),
        (&[("RGAPS_DEVICE", "cuda"), NO_CONTEXT], "cuDevicePrimaryCtxRetain failed", "compute mode"),
    ];
    for (variables, reason, what_to_do) in broken {
        let (good, [found, verdict, remedy]) = doctor(&host, variables);
        assert!(!good && verdict == "broken" && found.contains(reason), "{variables:?}: {found}");
        assert!(remedy.contains(what_to_do) && remedy.contains("RGAPS_DEVICE=host"), "{variables:?}: {remedy}");
    }
    for (fault, reason, what_to_do) in [(MISMATCH, "(803)", "reboot"), (NO_CONTEXT, "(46)", "compute mode")] {
        let (_, [found, verdict, remedy]) = doctor(&host, &[fault]);
        assert!(verdict == "limited" && found.contains(reason) && remedy.contains(what_to_do), "{found} {remedy}");
    }
}

#[test]
fn a_broken_driver_is_a_warning_and_an_absent_driver_is_none() {
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
fn a_client_that_cannot_open_the_managers_device_is_told_whose_choice_it_is() {
    let host = gpu_host("managers-choice");
    let (good, _, errors) = outcome(&mut on_gpu(&host, &["topic", "list"], &[("RGAPS_DEVICE", "cuda")]));
    assert!(good, "{errors}");
    let (good, _, errors) = outcome(&mut on_gpu(&host, &["topic", "list"], &[MISMATCH]));
    assert!(!good && errors.contains("the device of the rgapsd that runs") && errors.contains("(803)"), "{errors}");
}

#[test]
fn the_doctor_says_what_a_gpu_lacks_for_network_cards() {
    let host = gpu_host("doctor-cards");
    const GPU_DIRECT: (&str, &str) = ("RGAPS_TEST_STANDIN_GPU_DIRECT", "1");
    let exports =
        if rgaps_link::rdma::ports().is_ok_and(|ports| !ports.is_empty()) { " with " } else { "exports memory" };
    let cases: [(&[(&str, &str)], &str); 4] = [
        (&[], "CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED"),
        (&[GPU_DIRECT, ("RGAPS_TEST_STANDIN_NO_DMA_BUF", "1")], "cuMemGetHandleForAddressRange failed"),
        (&[GPU_DIRECT], exports),
        (&[GPU_DIRECT, ("RGAPS_TEST_STANDIN_INTEGRATED", "1")], "no GPU with memory of its own"),
    ];
    for (variables, said) in cases {
        let (_, found, errors) = outcome(&mut on_gpu(&host, &["doctor", "--json"], variables));
        let findings: Vec<serde_json::Value> = serde_json::from_str(&found).unwrap();
        let finding = findings.iter().find(|finding| finding["what"] == "GPUDirect RDMA").unwrap();
        assert!(finding["found"].as_str().unwrap().contains(said), "{variables:?}: {finding} {errors}");
    }
}
