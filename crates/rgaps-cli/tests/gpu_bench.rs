//! The GPU benches, tried on the stand-in for libcuda: the same processes and copies with small messages. Every message is checked, and no time is
//! printed.

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions

use std::process::{Command, Output, Stdio};
use std::time::Duration;

use rgaps_bench::gpu::TRIAL;
use rgaps_testing::{RuntimeDir, Watchdog};

/// Runs `rgaps bench` with the stand-in as libcuda: whether it succeeded, standard output, standard error.
fn bench(arguments: &[&str], settings: &[(&str, &str)]) -> (bool, String, String) {
    let _watchdog = Watchdog::new(Duration::from_secs(240));
    let folder = RuntimeDir::new("gpu-bench").unwrap();
    rgaps_standin_cuda::link_into(folder.path()).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_rgaps"));
    command.arg("bench").args(arguments).stdin(Stdio::null()).env_remove(TRIAL).env_remove("RGAPS_LOG");
    command.env("RGAPSD", rgaps_testing::programs::find("rgapsd")).env("LD_LIBRARY_PATH", folder.path());
    let Output { status, stdout, stderr } = command.envs(settings.iter().copied()).output().unwrap();
    (status.success(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

#[test]
fn every_gpu_bench_checks_its_messages_and_prints_no_times_of_the_stand_in() {
    let (good, said, errors) = bench(&["gpu"], &[(TRIAL, "1")]);
    assert!(good && errors.is_empty(), "{said}{errors}");
    for table in ["Table 4.2", "Table 4.3", "Table 4.4", "Table 4.5", "Table 4.6"] {
        assert!(said.contains(table), "{table}: {said}");
    }
    for line in
        ["path 1 3 MiB, beside", "push_on 3 MiB, beside 64 KiB", "the last of N = 2", "N = 2, beside the baseline"]
    {
        assert!(said.contains(line), "{line}: {said}");
    }
    let lines = said.lines().filter(|line| line.trim_start().starts_with("64 KiB  "));
    let cells: Vec<&str> = lines.flat_map(|line| line.split_whitespace().skip(2)).collect();
    assert!(cells.len() == 3 + 2 + 4 + 4 + 4 && cells.iter().all(|cell| *cell == "-"), "{cells:?}: {said}");
    assert!(said.ends_with("every message was checked, nothing was measured\n"), "{said}");
}

#[test]
fn the_papers_tables_are_tried_with_a_gpu_too() {
    let (good, said, errors) = bench(&["paper", "--device", "cuda"], &[(TRIAL, "1")]);
    assert!(good && errors.is_empty(), "{said}{errors}");
    for table in ["Table 4.1", "Table 4.2", "Table 4.3", "Table 4.4", "Table 4.5", "Table 4.6"] {
        assert!(said.contains(table), "{table}: {said}");
    }
    let (good, _, errors) = bench(&["paper", "--device", "cuda"], &[]);
    assert!(!good && errors.contains("stand-in for libcuda"), "{errors}");
}

#[test]
fn the_stand_in_is_refused_and_so_is_host_memory() {
    for bench_of in ["path1", "path3", "publish", "gpu"] {
        let (good, said, errors) = bench(&[bench_of], &[]);
        assert!(!good && said.is_empty() && errors.contains("stand-in for libcuda"), "{bench_of}: {said}{errors}");
    }
    let (good, _, errors) = bench(&["e2e", "--device", "cuda"], &[]);
    assert!(!good && errors.contains("stand-in for libcuda"), "{errors}");
    let (good, _, errors) = bench(&["path1", "--device", "host"], &[(TRIAL, "1")]);
    assert!(!good && errors.contains("this bench needs a GPU"), "{errors}");
}

#[test]
fn a_failing_process_ends_only_its_own_bench_and_says_why() {
    // In each process the third pageable copy fails: only the baseline's subscribers make any.
    let fault = ("RGAPS_TEST_STANDIN_FAIL", "cuMemcpyHtoD_v2#3=719");
    let (good, said, errors) = bench(&["gpu"], &[(TRIAL, "1"), fault]);
    assert!(!good && said.contains("push_on 3 MiB") && !said.contains("Table 4.4"), "{said}");
    assert!(!said.contains("every message was checked"), "{said}");
    assert!(errors.contains("cuMemcpyHtoD_v2 failed: CUDA_ERROR_LAUNCH_FAILED (719)"), "{errors}");
    assert!(errors.contains("bench path3: a process of the bench failed, see above"), "{errors}");
}
