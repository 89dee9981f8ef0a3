//! `rgaps doctor`: checks what this machine offers, and says what to do about each problem.

mod gpu;
mod gpu_direct;
mod place;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use rgaps::{Node, NodeError};
use rgaps_command::output::{self, Format, table};
use rgaps_control::announcements::Counters;
use rgaps_control::interfaces::{format_interfaces, multicast_interfaces};
use rgaps_control::range::{Range, Unset};
use rgaps_control::{Budget, Config, Given, Limits, Running, spawn};
use rgaps_link::rdma::{LinkLayer, Port};
use serde::Serialize;

/// Where zenoh scouts.
const MULTICAST_GROUP: &str = "224.0.0.224:7446";

/// What a finding means for RGAPS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// No problem.
    Ok,
    /// RGAPS works, but slower or with a feature missing.
    Limited,
    /// RGAPS does not work.
    Broken,
}

/// One finding.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// What was checked.
    pub what: &'static str,
    /// What was found.
    pub found: String,
    /// What it means for RGAPS.
    pub verdict: Verdict,
    /// What to do about it; empty if nothing.
    pub remedy: String,
}

impl Finding {
    fn ok(what: &'static str, found: impl Into<String>) -> Self {
        Self { what, found: found.into(), verdict: Verdict::Ok, remedy: String::new() }
    }

    fn limited(what: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { what, found: found.into(), verdict: Verdict::Limited, remedy: remedy.into() }
    }

    fn broken(what: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { what, found: found.into(), verdict: Verdict::Broken, remedy: remedy.into() }
    }
}

/// Checks everything. Never fails: a value that cannot be read is a finding.
pub fn examine() -> Vec<Finding> {
    vec![
        configuration(),
        place::finding(),
        manager(),
        network(),
        multicast(),
        other_hosts(),
        budgets(),
        kernel(),
        sealed_memory(),
        futex(),
        gpu::finding(),
        verbs(),
        gpu_direct::finding(),
        memlock(),
        shared_memory(),
        huge_pages(),
        namespaces(),
    ]
}

/// Prints the findings; false if something is broken.
pub fn run(format: Format) -> bool {
    let findings = examine();
    match format {
        Format::Json => output::json(&findings),
        Format::Human => {
            let mut table = table(["", "what", "found", "what to do"]);
            for finding in &findings {
                let mark = match finding.verdict {
                    Verdict::Ok => "ok",
                    Verdict::Limited => "limited",
                    Verdict::Broken => "BROKEN",
                };
                table.add_row([mark, finding.what, &finding.found, &finding.remedy]);
            }
            output::line(table);
        }
    }
    findings.iter().all(|finding| finding.verdict != Verdict::Broken)
}

fn kernel() -> Finding {
    const WHAT: &str = "kernel";
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    match version(&release) {
        // pidfd_open needs 5.3, F_SEAL_FUTURE_WRITE 5.1.
        Some(found) if found < (5, 3) => Finding::broken(WHAT, release, "RGAPS needs Linux 5.3 or newer (pidfd_open)"),
        Some(_) => Finding::ok(WHAT, release),
        None => Finding::limited(WHAT, release, "the version could not be read; RGAPS needs Linux 5.3 or newer"),
    }
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

fn sealed_memory() -> Finding {
    const WHAT: &str = "sealed memory";
    let probe = rgaps_os::memfd::create_to_be_sealed("rgaps-doctor", 4096).and_then(|fd| {
        rgaps_os::memfd::seal_future_write(&fd)?;
        Ok(())
    });
    match probe {
        Ok(()) => Finding::ok(WHAT, "memfd with F_SEAL_FUTURE_WRITE"),
        Err(error) => {
            Finding::broken(WHAT, error.to_string(), "allow memfd_create(2) and fcntl seals (seccomp profile?)")
        }
    }
}

fn futex() -> Finding {
    const WHAT: &str = "process death";
    match rgaps_os::PidFd::own() {
        Ok(_) => Finding::ok(WHAT, "pidfd"),
        Err(error) => Finding::broken(WHAT, error.to_string(), "allow pidfd_open(2) (seccomp profile?)"),
    }
}

const VERBS: &str = "RDMA verbs";

fn without_rdma(why: &str, is_required: bool) -> Finding {
    if is_required {
        let found = format!("{why}; transport = \"rdma\" needs a device");
        return Finding::broken(VERBS, found, "set transport = \"auto\", or install rdma-core and an RNIC");
    }
    let remedy = "none needed: hosts are linked over TCP; for RDMA install rdma-core and an RNIC, or load rdma_rxe";
    Finding::limited(VERBS, why, remedy)
}

fn verbs() -> Finding {
    let is_required = Config::load(&BTreeMap::new()).is_ok_and(|config| config.transport == "rdma");
    let ports = match rgaps_link::rdma::ports() {
        Ok(ports) if ports.is_empty() => return without_rdma("no device", is_required),
        Ok(ports) => ports,
        Err(error) => return without_rdma(&error.to_string(), is_required),
    };
    let found: Vec<String> = ports.iter().map(port).collect();
    match ports.iter().any(|port| !port.candidates().is_empty()) {
        true => Finding::ok(VERBS, found.join("; ")),
        false => Finding::limited(
            VERBS,
            found.join("; "),
            "no port can carry a link: bring one up (`ip link set DEV up`), and on Ethernet give it an address for RoCE v2",
        ),
    }
}

/// A port on one line: device, state, link layer, addresses.
fn port(port: &Port) -> String {
    let gids: Vec<String> =
        port.gids.iter().map(|entry| format!("{} {} ({})", entry.index, entry.gid, entry.kind)).collect();
    let layer = match port.link_layer {
        Some(LinkLayer::Ethernet) => "Ethernet",
        Some(LinkLayer::InfiniBand) => "InfiniBand",
        None => "neither Ethernet nor InfiniBand",
    };
    format!(
        "{}/{}: {}, {layer}, packets of {} B, GIDs {}",
        port.device,
        port.number,
        if port.is_active { "active" } else { "down" },
        port.mtu_bytes,
        if gids.is_empty() { "none".to_owned() } else { gids.join(", ") }
    )
}

fn memlock() -> Finding {
    const WHAT: &str = "locked memory";
    // The size of one link's ring; tcp and host memory lock nothing.
    let ring = Config::load(&BTreeMap::new()).unwrap_or_default().ring_bytes;
    match rgaps_os::memlock::check(ring) {
        Ok(()) => Finding::ok(WHAT, format!("a ring of {} may be locked", output::bytes(ring as f64))),
        Err(error) => Finding::limited(
            WHAT,
            error.to_string(),
            "none needed for tcp and host memory; for pinned rings (RDMA, CUDA) raise the limit as described",
        ),
    }
}

fn configuration() -> Finding {
    const WHAT: &str = "configuration";
    match Config::load(&BTreeMap::new()) {
        Ok(_) => Finding::ok(WHAT, "every value is valid"),
        Err(error) => Finding::broken(WHAT, error.to_string(), "correct that value, or remove it for its default"),
    }
}

fn manager() -> Finding {
    let given = Given::load(&BTreeMap::new(), Unset::Local);
    let found = Running::find();
    // The first finding reports an invalid configuration, and that of the network how far it reaches if nothing was set.
    let runs = found.map(|running| Runs {
        process: running.to_string(),
        warning: given.ok().and_then(|given| running.warning(Ok(with_network_of(&running, given)))),
        fault: answers().err().map(|error| error.to_string()),
    });
    of_manager(runs, spawn::find_program(), spawn::is_turned_off())
}

/// This configuration, with the manager's network if it does not say anything about the network.
fn with_network_of(running: &Running, mut given: Given) -> Given {
    if let Some(config) = running.config.as_ref().filter(|_| !given.origins.contains_key("network")) {
        given.config.network.clone_from(&config.network);
    }
    given
}

/// A manager that runs.
#[derive(Debug)]
struct Runs {
    process: String,
    /// Where its configuration differs from this program's.
    warning: Option<String>,
    /// Why it does not answer a client.
    fault: Option<String>,
}

/// Whether the manager answers a client.
fn answers() -> Result<(), NodeError> {
    Node::builder().name("rgaps doctor").no_autostart().build()?.topics().map(drop)
}

fn of_manager(runs: Option<Runs>, program: Option<PathBuf>, is_turned_off: bool) -> Finding {
    const WHAT: &str = "manager";
    const LOOKED: &str = "RGAPSD, the folder of this program, the one above it, PATH";
    match (runs, program) {
        (Some(Runs { process, fault: Some(fault), .. }), _) => Finding::broken(
            WHAT,
            format!("{process} runs, and serves no client: {fault}"),
            format!(
                "if {process} is stopped, continue it (kill -CONT); otherwise end it (kill), and the next client starts another"
            ),
        ),
        (Some(Runs { process, warning: Some(warning), .. }), _) => {
            Finding::limited(WHAT, format!("{process} runs"), warning)
        }
        (Some(Runs { process, .. }), _) => Finding::ok(WHAT, format!("{process} runs, as configured")),
        (None, None) => Finding::broken(
            WHAT,
            "none runs, and there is no rgapsd",
            format!("put rgapsd where RGAPS looks for it: {LOOKED}"),
        ),
        (None, Some(program)) if is_turned_off => Finding::limited(
            WHAT,
            "none runs, and RGAPS_AUTOSTART=0 keeps clients from starting one",
            format!("start {}, or unset RGAPS_AUTOSTART", program.display()),
        ),
        (None, Some(program)) => Finding::ok(WHAT, format!("none runs; the first client starts {}", program.display())),
    }
}

fn network() -> Finding {
    let running = Running::find().and_then(|running| Some((running.config.as_ref()?.range(), running.to_string())));
    if let Some((range, process)) = running {
        return of_network(range, &format!("{process} runs so"));
    }
    match [Unset::Local, Unset::Subnet].map(|unset| Given::load(&BTreeMap::new(), unset)) {
        [Ok(program), Ok(ros)] if program.config.range() != ros.config.range() => Finding::ok(
            "network",
            format!(
                "nothing is set: a manager that a ROS 2 node or a launch file starts will be {}, any other {}",
                ros.config.range(),
                program.config.range()
            ),
        ),
        [Ok(given), _] => of_network(given.config.range(), &given.decision.by),
        [Err(error), _] => Finding::broken("network", error.to_string(), "correct the configuration"),
    }
}

fn of_network(range: Range, by: &str) -> Finding {
    const WHAT: &str = "network";
    match range {
        Range::Local | Range::Loopback => Finding::ok(WHAT, format!("{range} ({by}): {}", range.meaning())),
        Range::Open => Finding::limited(WHAT, format!("{range} ({by}), unauthenticated"), range.meaning()),
    }
}

fn multicast() -> Finding {
    let running = Running::find();
    let others = running.as_ref().and_then(|running| running.network.as_ref()).map_or(0, |of| of.hosts);
    let config = match running.and_then(|running| running.config) {
        Some(config) => config,
        None => Given::load(&BTreeMap::new(), Unset::Local).map(|given| given.config).unwrap_or_default(),
    };
    match (&config.routers[..], &config.peers[..]) {
        ([], peers) if !(peers.is_empty() || config.scouts()) => of_peers(&peers.join(", "), others),
        ([], _) => of_multicast(config.scouts(), &format_interfaces(&multicast_interfaces()), others),
        (routers, _) => of_routers(&routers.join(", "), others),
    }
}

/// Hosts name each other, and multicast is off.
fn of_peers(peers: &str, others: usize) -> Finding {
    let remedy = "nothing, if none runs; else look whether rgapsd listens there (ss -ltnp), and let all TCP between the hosts pass firewalls";
    introduced("peers", peers, others, remedy)
}

/// Hosts find each other through these routers.
fn of_routers(routers: &str, others: usize) -> Finding {
    let remedy = "nothing, if there is no other host; else start the routers (ros2 run rmw_zenoh_cpp rmw_zenohd) and link them, or let multicast find \
                  the hosts (multicast = true, without routers)";
    introduced("routers", routers, others, remedy)
}

fn introduced(what: &'static str, by: &str, others: usize, remedy: &str) -> Finding {
    match others {
        0 => Finding::limited(what, format!("{by}; no other host was found"), remedy),
        _ => Finding::ok(what, by),
    }
}

/// How hosts find each other, if by multicast, on these interfaces.
fn of_multicast(scouts: bool, interfaces: &str, others: usize) -> Finding {
    const WHAT: &str = "multicast";
    const PEERS: &str = "let the hosts name each other (peers = [\"tcp/ADDRESS:7447\"])";
    match (scouts, interfaces.is_empty(), others) {
        (false, ..) => Finding::ok(WHAT, "not used"),
        (true, true, 0) => Finding::limited(
            WHAT,
            "no interface is up that has an IPv4 address and multicast",
            format!("bring up the network (ip address); or {PEERS}"),
        ),
        (true, true, _) => Finding::ok(WHAT, "no interface has it; the other hosts were found by `peers`"),
        (true, false, 0) => Finding::limited(
            WHAT,
            format!("{interfaces}; no other host was found"),
            format!(
                "nothing, if there is no other host; else let UDP to {MULTICAST_GROUP} pass firewalls and switches, restart rgapsd if its log names an interface that came up later, or {PEERS}"
            ),
        ),
        (true, false, _) => Finding::ok(WHAT, interfaces),
    }
}

fn other_hosts() -> Finding {
    of_other_hosts(Running::find().and_then(|running| running.network))
}

/// What the manager received from other hosts, and how much of it it refused.
fn of_other_hosts(counters: Option<Counters>) -> Finding {
    const WHAT: &str = "other hosts";
    let Some(of) = counters else {
        return Finding::ok(WHAT, "no manager runs that has received anything from other hosts");
    };
    let found = format!(
        "{} other hosts with {} endpoints; {} announcements, {} checks for changes, {} pauses because a host changed too fast",
        of.hosts, of.endpoints, of.announcements, of.changes, of.held_back
    );
    if of.refused == 0 {
        return Finding::ok(WHAT, found);
    }
    Finding::limited(
        WHAT,
        format!("{found}; {} announcements refused ({} times asked for again)", of.refused, of.asked_again),
        "rgapsd's log names who announces too much: spread its topics, or split the network (peers, multicast)",
    )
}

fn budgets() -> Finding {
    let running = Running::find();
    let limits = running.as_ref().and_then(|running| running.config.as_ref()).map(|config| config.limits.clone());
    of_budgets(&limits.unwrap_or_default(), running.and_then(|running| running.network).map(|of| of.budgets))
}

/// Which budgets were reached, and how often.
fn of_budgets(limits: &Limits, met: Option<BTreeMap<String, u64>>) -> Finding {
    const WHAT: &str = "budgets";
    let Some(met) = met else { return Finding::ok(WHAT, "no manager runs that has counted budgets") };
    let met = Budget::ALL.iter().filter_map(|budget| Some((limits.over(*budget), met.get(budget.key())?)));
    let met: Vec<String> = met.map(|(budget, times)| format!("{budget} reached {times} times")).collect();
    if met.is_empty() {
        return Finding::ok(WHAT, "none was reached");
    }
    Finding::limited(
        WHAT,
        met.join("; "),
        "rgapsd's log names which hosts or programs reached them: raise these keys if that is meant (docs/configuration.md), else keep them out",
    )
}

fn shared_memory() -> Finding {
    const WHAT: &str = "shared memory";
    let Some(available) = meminfo("MemAvailable:") else {
        return Finding::limited(WHAT, "/proc/meminfo cannot be read", "mount /proc");
    };
    let found = format!("{} available to memfds (no /dev/shm file is used)", output::bytes(available as f64));
    if let Some(limit) = cgroup_limit().filter(|limit| *limit < 1 << 30) {
        let found = format!("{found}; the control group allows {}", output::bytes(limit as f64));
        return Finding::limited(WHAT, found, "raise the container's memory limit above the sum of the pools");
    }
    match available {
        bytes if bytes < 512 << 20 => Finding::limited(WHAT, found, "lower pool_bytes and ring_bytes, or free memory"),
        _ => Finding::ok(WHAT, found),
    }
}

fn huge_pages() -> Finding {
    const WHAT: &str = "huge pages";
    let setting = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled").unwrap_or_default();
    let chosen = setting.split(['[', ']']).nth(1).unwrap_or("unknown").to_owned();
    match chosen.as_str() {
        "always" | "advise" | "within_size" => Finding::ok(WHAT, format!("shmem_enabled is {chosen}")),
        _ => Finding::limited(
            WHAT,
            format!("shmem_enabled is {chosen}"),
            "fewer page faults in large pools: echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled",
        ),
    }
}

fn namespaces() -> Finding {
    const WHAT: &str = "demo hosts";
    if !rustix::process::geteuid().is_root() {
        return Finding::ok(WHAT, "two loopback addresses; as root two network namespaces");
    }
    let ip = ["/usr/sbin/ip", "/sbin/ip", "/usr/bin/ip"].iter().any(|path| Path::new(path).exists());
    match ip {
        true => Finding::ok(WHAT, "network namespaces"),
        false => Finding::limited(WHAT, "no ip command", "apt-get install iproute2"),
    }
}

fn meminfo(key: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

fn cgroup_limit() -> Option<u64> {
    fs::read_to_string("/sys/fs/cgroup/memory.max").ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_versions_are_read_from_any_suffix() {
        assert_eq!(version("6.1.0-18-amd64"), Some((6, 1)));
        assert_eq!(version("5.15.0+rt"), Some((5, 15)));
        assert_eq!(version("unknown"), None);
    }

    #[test]
    fn the_manager_that_runs_or_would_be_started_is_named() {
        let program = || Some(PathBuf::from("/opt/rgapsd"));
        let runs = |warning: Option<&str>, fault: Option<&str>| {
            let [warning, fault] = [warning, fault].map(|text| text.map(str::to_owned));
            of_manager(Some(Runs { process: "process 7".to_owned(), warning, fault }), program(), false)
        };
        let running = runs(None, None);
        assert!(running.verdict == Verdict::Ok && running.found.contains("process 7"), "{running:?}");
        let other = runs(Some("without effect: listen"), None);
        assert!(other.verdict == Verdict::Limited && other.remedy.contains("listen"), "{other:?}");
        let stopped = runs(None, Some("no answer"));
        assert!(stopped.verdict == Verdict::Broken && stopped.found.contains("no answer"), "{stopped:?}");
        let started = of_manager(None, program(), false);
        assert!(started.verdict == Verdict::Ok && started.found.contains("starts /opt/rgapsd"), "{started:?}");
        let by_hand = of_manager(None, program(), true);
        assert!(by_hand.verdict == Verdict::Limited && by_hand.remedy.contains("start /opt/rgapsd"), "{by_hand:?}");
        let none = of_manager(None, None, false);
        assert!(none.verdict == Verdict::Broken && none.remedy.contains("RGAPSD"), "{none:?}");
    }

    #[test]
    fn announcements_that_the_manager_refused_are_reported_with_numbers() {
        let well = Counters { hosts: 2, endpoints: 7, announcements: 9, held_back: 1, ..Counters::default() };
        let found = of_other_hosts(Some(well.clone()));
        assert!(found.verdict == Verdict::Ok && found.found.contains("2 other hosts with 7 endpoints"), "{found:?}");
        let refused = of_other_hosts(Some(Counters { refused: 5, ..well }));
        assert_eq!(refused.verdict, Verdict::Limited);
        assert!(refused.found.contains("5 announcements refused"), "{refused:?}");
        assert_eq!(of_other_hosts(None).verdict, Verdict::Ok);
    }

    #[test]
    fn each_budget_that_was_met_is_named_with_its_limit_and_how_often() {
        let limits = Limits { links_max: 7, ..Limits::default() };
        let finding = of_budgets(&limits, Some(BTreeMap::from([("links_max".to_owned(), 3)])));
        assert!(finding.verdict == Verdict::Limited && finding.found == "links_max = 7 reached 3 times", "{finding:?}");
        assert_eq!(of_budgets(&limits, Some(BTreeMap::new())).verdict, Verdict::Ok);
        assert_eq!(of_budgets(&limits, None).verdict, Verdict::Ok);
    }

    #[test]
    fn a_host_without_rdma_is_limited_and_broken_if_rdma_is_configured() {
        assert_eq!(without_rdma("no device", false).verdict, Verdict::Limited);
        let broken = without_rdma("no device", true);
        assert!(
            broken.verdict == Verdict::Broken && broken.found.contains("no device; transport = \"rdma\""),
            "{broken:?}"
        );
    }

    #[test]
    fn a_closed_network_is_fine_and_an_open_one_is_reported_as_unauthenticated() {
        let closed = of_network(Range::Local, "the default");
        assert!(closed.verdict == Verdict::Ok && closed.found.contains("RGAPS_NETWORK=open"), "{closed:?}");
        let open = of_network(Range::Open, "environment");
        assert!(open.verdict == Verdict::Limited && open.found.contains("unauthenticated"), "{open:?}");
        assert!(open.remedy.contains("anyone who reaches this host can read and write every topic"), "{open:?}");
    }

    #[test]
    fn a_host_that_multicast_cannot_serve_is_told_what_to_set() {
        let alone = of_multicast(true, "eth0 (10.0.0.1)", 0);
        assert!(alone.verdict == Verdict::Limited && alone.found.contains("eth0 (10.0.0.1)"), "{alone:?}");
        assert!(alone.remedy.contains("224.0.0.224:7446") && alone.remedy.contains("peers"), "{alone:?}");
        let cut_off = of_multicast(true, "", 0);
        assert!(cut_off.verdict == Verdict::Limited && cut_off.remedy.contains("ip address"), "{cut_off:?}");
        assert_eq!(of_multicast(true, "eth0 (10.0.0.1)", 1).verdict, Verdict::Ok);
        assert_eq!(of_multicast(false, "", 0).verdict, Verdict::Ok);
        let routers = of_routers("tcp/localhost:7447", 0);
        assert!(routers.verdict == Verdict::Limited && routers.remedy.contains("rmw_zenohd"), "{routers:?}");
        assert_eq!(of_routers("tcp/localhost:7447", 1).verdict, Verdict::Ok);
        let peers = of_peers("tcp/10.0.0.2:7447", 0);
        assert!(peers.verdict == Verdict::Limited && peers.found.contains("no other host was found"), "{peers:?}");
        assert_eq!(of_peers("tcp/10.0.0.2:7447", 1).verdict, Verdict::Ok);
    }

    #[test]
    fn the_network_of_a_manager_that_a_ros_node_started_is_no_setting_without_effect() {
        let open = Config { network: "open".to_owned(), ..Config::default() };
        let running = Running { pid: 7, config: Some(open), network: None };
        let warning = |given: Given| running.warning(Ok(with_network_of(&running, given)));
        assert_eq!(warning(Given::default()), None);
        let origins = BTreeMap::from([("network".to_owned(), "environment".to_owned())]);
        let closed = warning(Given { origins, ..Given::default() });
        assert!(closed.is_some_and(|said| said.contains("network = \"local\"")));
    }

    #[test]
    fn every_problem_has_a_remedy() {
        for finding in examine() {
            assert_eq!(finding.verdict == Verdict::Ok, finding.remedy.is_empty(), "{finding:?}");
        }
    }
}
