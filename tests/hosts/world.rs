//! Hosts, the programs on them, and waits for visible states.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rgaps_testing::{Child, Ended, Hosts, HostsError, RuntimeDir, Watchdog, skipped};
use serde_json::Value;

/// Limit of every wait; far above what any of them needs.
pub const LIMIT: Duration = Duration::from_secs(45);
/// Interval between two checks of a state.
const LOOK: Duration = Duration::from_millis(20);

/// Several hosts. Dropping it ends the programs, then removes their directories, then the namespaces.
pub struct World {
    dirs: Vec<RuntimeDir>,
    scratch: RuntimeDir,
    pub hosts: Hosts,
    /// Variables for all hosts, or for one.
    settings: Vec<(Option<usize>, &'static str, String)>,
    _watchdog: Watchdog,
}

impl World {
    /// `None`, with a message, if no namespaces can be made.
    pub fn new(hosts: usize) -> Option<Self> {
        Self::of(Watchdog::new(Duration::from_secs(240)), Hosts::new(hosts))
    }

    /// Two hosts with a bad network between them. The watchdog ends the test after `limit`.
    pub fn over_bad_network(seed: u64, limit: Duration) -> Option<Self> {
        Self::of(Watchdog::new(limit), Hosts::over_bad_network(seed))
    }

    fn of(watchdog: Watchdog, hosts: Result<Hosts, HostsError>) -> Option<Self> {
        let hosts = match hosts {
            Ok(hosts) => hosts,
            Err(HostsError::Unavailable(why)) => {
                skipped(why);
                return None;
            }
            Err(error) => panic!("{error}"),
        };
        let dirs = (0..hosts.all().len()).map(|host| RuntimeDir::new(&format!("h{host}")).unwrap()).collect();
        let scratch = RuntimeDir::new("scratch").unwrap();
        Some(Self { dirs, scratch, hosts, settings: Vec::new(), _watchdog: watchdog })
    }

    /// Sets a variable for all programs started from now on.
    pub fn set(&mut self, name: &'static str, value: impl Into<String>) {
        self.settings.push((None, name, value.into()));
    }

    /// The same for the programs of one host.
    pub fn set_on(&mut self, host: usize, name: &'static str, value: impl Into<String>) {
        self.settings.push((Some(host), name, value.into()));
    }

    /// A host's runtime directory.
    pub fn dir(&self, host: usize) -> &RuntimeDir {
        &self.dirs[host]
    }

    /// A folder for a test's files; removed after it.
    pub fn folder(&self, name: &str) -> PathBuf {
        let folder = self.scratch.path().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    /// A folder with `count` copies of one of the example files: a publisher of it sends that many messages.
    pub fn series(&self, file: &str, count: usize) -> PathBuf {
        let folder = self.folder("series");
        let extension = Path::new(file).extension().unwrap().to_str().unwrap().to_owned();
        for index in 0..count {
            std::fs::copy(example(file), folder.join(format!("{index:04}.{extension}"))).unwrap();
        }
        folder
    }

    /// A command that runs a program on a host.
    pub fn command(&self, host: usize, program: &Path) -> Command {
        let address = |host: usize| format!("tcp/{}:7447", self.hosts[host].address());
        let others: Vec<String> = (0..self.dirs.len()).filter(|other| *other != host).map(address).collect();
        let settings = self.settings.iter().filter(|(of, ..)| of.is_none_or(|of| of == host));
        let mut command = self.hosts[host].command(program);
        self.dirs[host].apply(&mut command);
        command
            .env_remove("RMW_IMPLEMENTATION")
            .env("RGAPSD", built("rgapsd"))
            .env("RGAPS_NETWORK", "open")
            .env("RGAPS_MULTICAST", "off")
            .env("RGAPS_HOST_NAME", name(host))
            .env("RGAPS_LISTEN", address(host))
            .env("RGAPS_PEERS", others.join(","))
            .envs(settings.map(|(_, name, value)| (name, value)))
            .stdin(Stdio::null());
        command
    }

    /// A command that runs one of the project's programs on a host.
    pub fn command_of(&self, host: usize, program: &str) -> Command {
        self.command(host, &built(program))
    }

    /// Starts a program on a host; `label` names its output.
    pub fn start(&self, host: usize, label: &str, program: &str, arguments: &[&str]) -> Program {
        let mut command = self.command(host, &built(program));
        self.spawn(host, label, command.args(arguments))
    }

    /// Starts this command on a host; `label` names its output.
    pub fn spawn(&self, host: usize, label: &str, command: &mut Command) -> Program {
        let output = self.folder("output").join(format!("{label}.{}", name(host)));
        command.stdout(File::create(&output).unwrap());
        command.stderr(File::create(errors_beside(&output)).unwrap());
        let child = Child::spawn(command).unwrap();
        Program { child, label: format!("{label} on {}", name(host)), output }
    }

    /// `rgaps sub` with --json.
    pub fn sub(&self, host: usize, label: &str, arguments: &[&str]) -> Program {
        self.start(host, label, "rgaps", &[&["--json", "sub"], arguments].concat())
    }

    /// `rgaps pub` with --json.
    pub fn publish(&self, host: usize, label: &str, arguments: &[&str]) -> Program {
        self.start(host, label, "rgaps", &[&["--json", "pub"], arguments].concat())
    }

    /// Starts a manager by hand.
    pub fn manager(&self, host: usize, label: &str) -> Program {
        self.start(host, label, "rgapsd", &[])
    }

    /// A host's information about a topic; nothing if it does not know the topic.
    pub fn info(&self, host: usize, topic: &str) -> Option<Value> {
        let output = self.command(host, &built("rgaps")).args(["--json", "topic", "info", topic]).output().unwrap();
        serde_json::from_slice(&output.stdout).ok()
    }

    /// Waits until a host's information about a topic is as expected.
    pub fn await_info(&self, host: usize, topic: &str, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let mut last = None;
        let found = within_limit(|| {
            last = self.info(host, topic);
            last.clone().filter(&wanted)
        });
        found.unwrap_or_else(|| panic!("{} never said {what} of {topic}; last {last:?}\n{}", name(host), self.logs()))
    }

    /// The process id of a host's manager, once there is one.
    pub fn manager_pid(&self, host: usize) -> u32 {
        let users = within_limit(|| {
            let mut users = self.dirs[host].users().unwrap();
            users.retain(|pid| is_manager(*pid));
            (users.len() == 1).then(|| users[0])
        });
        users.unwrap_or_else(|| panic!("no manager on {}: {:?}", name(host), self.dirs[host].users()))
    }

    /// The log of a host's manager, if a client has started it.
    pub fn log(&self, host: usize) -> String {
        std::fs::read_to_string(self.dirs[host].path().join("rgapsd.log")).unwrap_or_default()
    }

    /// Waits until the log of a host's manager contains a text.
    pub fn await_log(&self, host: usize, text: &str) {
        let found = within_limit(|| self.log(host).contains(text).then_some(()));
        assert!(found.is_some(), "{} never logged \"{text}\"\n{}", name(host), self.logs());
    }

    /// The managers' logs, for panic messages.
    pub fn logs(&self) -> String {
        let logs = (0..self.dirs.len()).map(|host| format!("--- rgapsd of {}\n{}", name(host), self.log(host)));
        let programs = std::fs::read_dir(self.folder("output")).unwrap().flatten().map(|file| {
            let text = std::fs::read_to_string(file.path()).unwrap_or_default();
            let tail: Vec<&str> = text.lines().rev().take(4).collect();
            format!("--- {}\n{}\n", file.file_name().display(), tail.into_iter().rev().collect::<Vec<_>>().join("\n"))
        });
        logs.chain(programs).collect()
    }
}

fn is_manager(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim() == "rgapsd")
}

/// The file of a program's standard error, beside that of its output.
fn errors_beside(output: &Path) -> PathBuf {
    let mut name = output.as_os_str().to_owned();
    name.push(".errors");
    name.into()
}

/// A running program and its output.
pub struct Program {
    pub child: Child,
    label: String,
    output: PathBuf,
}

impl Program {
    /// The lines of JSON that it has written.
    pub fn lines(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(&self.output).unwrap();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Its standard error.
    pub fn errors(&self) -> String {
        std::fs::read_to_string(errors_beside(&self.output)).unwrap()
    }

    /// Waits for this many lines of JSON.
    pub fn await_lines(&self, world: &World, count: usize) {
        let found = within_limit(|| (self.lines().len() >= count).then_some(()));
        assert!(
            found.is_some(),
            "{}: {} of {count} lines; errors: {}\n{}",
            self.label,
            self.lines().len(),
            self.errors(),
            world.logs()
        );
    }

    /// Waits for a successful exit; returns the last line of its output.
    pub fn summary(&mut self, world: &World) -> Value {
        let (good, last) = self.end(world);
        assert!(good, "{} failed: {last}; errors: {}\n{}", self.label, self.errors(), world.logs());
        last
    }

    /// Waits for its exit; whether it succeeded, and the last line of its output.
    fn end(&mut self, world: &World) -> (bool, Value) {
        let ended = self.child.wait_within(LIMIT).unwrap();
        let last = self.lines().pop();
        match (ended, last) {
            (Ended::Exited(status), Some(last)) => (status.success(), last),
            (_, last) => panic!("{}: {ended:?}; {last:?}; errors: {}\n{}", self.label, self.errors(), world.logs()),
        }
    }

    /// Sends Ctrl-C, and returns the summary.
    pub fn interrupt(&mut self, world: &World) -> Value {
        self.child.interrupt().unwrap();
        self.summary(world)
    }

    /// Waits for the last of this many messages from one publisher, then sends Ctrl-C. Messages taken and messages counted as lost must add up to all
    /// that were published meanwhile, and none may be missing without being counted.
    pub fn interrupt_and_account_exactly(&mut self, world: &World, published: &Value) -> Value {
        let newest = || self.lines().iter().filter_map(|line| line["sequence"].as_u64()).next_back();
        let all = within_limit(|| (newest() == published["published"].as_u64()).then_some(()));
        assert!(all.is_some(), "{}: {:?} of {published}\n{}", self.label, newest(), world.logs());
        let first = self.lines().iter().find_map(|line| line["sequence"].as_u64());
        let received = self.interrupt_and_account(world);
        let number = |value: &Value| value.as_u64().unwrap();
        let counted = number(&received["taken"]) + number(&received["statistics"]["lost"]);
        assert_eq!(Some(counted), published["published"].as_u64().zip(first).map(|(last, first)| last - first + 1));
        assert_eq!(received["missing"], 0, "{received}");
        received
    }

    /// Sends Ctrl-C to a subscriber of one publisher that may have missed messages: none may arrive twice or damaged, and it must have counted every
    /// missed one.
    pub fn interrupt_and_account(&mut self, world: &World) -> Value {
        self.child.interrupt().unwrap();
        let (_, received) = self.end(world);
        let sequences: Vec<u64> = self.lines().iter().filter_map(|line| line["sequence"].as_u64()).collect();
        assert!(sequences.windows(2).all(|pair| pair[0] < pair[1]), "twice, or out of order: {sequences:?}");
        let span = sequences.last().unwrap() - sequences[0] + 1;
        let number = |value: &Value| value.as_u64().unwrap();
        let counted =
            number(&received["taken"]) + number(&received["missing"]) + number(&received["statistics"]["lost"]);
        assert!(counted >= span, "{span} messages were published meanwhile, {counted} accounted for: {received}");
        assert_eq!(received["mismatched"], 0, "{received}");
        received
    }
}

/// A host's name for people.
pub fn name(host: usize) -> String {
    format!("host{}", (b'A' + u8::try_from(host).unwrap()) as char)
}

/// A file of examples/data.
pub fn example(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/data").join(file)
}

/// Repeats a check until it gives an answer or the limit has passed.
pub fn within_limit<T>(mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + LIMIT;
    loop {
        let answer = ask();
        if answer.is_some() || Instant::now() >= deadline {
            return answer;
        }
        thread::park_timeout(LOOK);
    }
}

/// The folder of this workspace's programs: the parent of the test's own.
pub fn programs() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    own.ancestors().nth(2).unwrap().to_owned()
}

/// A program of this workspace.
fn built(program: &str) -> PathBuf {
    let path = programs().join(program);
    assert!(
        path.is_file(),
        "{} does not exist: `cargo build -p rgaps-cli -p rgaps-manager --bins` makes it (./dev test does)",
        path.display()
    );
    path
}
