//! Members of `socket_group`, who are other users than the manager's: what a manager gives them, and what they may hand back to its successor.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rgaps_control::local::{
    Body, Connection, Handed, HandedSlot, HandedTopic, PROTOCOL_VERSION, Refusal, Reply, Request, Subscribed, ToClient,
};
use rgaps_control::{EndpointSlot, LockId, SubscriberQos, TopicKey};
use rgaps_os::{PidFd, ProcessLock};
use rgaps_shm::Segment;
use rgaps_shm::layout::LAYOUT_VERSION;
use rgaps_testing::{Child, manager, skipped};
use rustix::fs::{CWD, FileType, Mode, OFlags};

use crate::{Host, LIMIT};

/// The admitted group.
const GROUP: u32 = 54_321;
/// A user in it.
const MEMBER: u32 = 54_000;
const TOPIC: &str = "members";
const TYPE: &str = "rgaps/Bytes";

/// A host that admits members. `None`, and the test is skipped, if this process cannot become another user.
fn host(name: &str) -> Option<Host> {
    if rustix::process::geteuid().is_root() {
        return Some(Host::new(name));
    }
    skipped("needs root, to be other users");
    None
}

fn rgapsd(host: &Host) -> Child {
    let mut command = host.program("rgapsd");
    command.env("RGAPS_NETWORK", "local").env_remove("RGAPS_LISTEN").env("RGAPS_SOCKET_GROUP", GROUP.to_string());
    manager::start(&host.dir, command).unwrap()
}

/// Runs `act` as a member, on a thread that becomes that user for the rest of its life.
fn as_member<T: Send>(act: impl FnOnce() -> T + Send) -> T {
    let (user, group) = (rustix::fs::Uid::from_raw(MEMBER), rustix::fs::Gid::from_raw(GROUP));
    let act = move || {
        rustix::thread::set_thread_groups(&[group]).unwrap();
        rustix::thread::set_thread_res_gid(group, group, group).unwrap();
        rustix::thread::set_thread_res_uid(user, user, user).unwrap();
        act()
    };
    std::thread::scope(|scope| scope.spawn(act).join().unwrap())
}

/// A client that speaks the protocol by hand.
struct Client {
    connection: Connection,
    lock: (LockId, ProcessLock),
}

/// Sends a hello. Returns the lock's file from the welcome, unless the client holds a lock already.
fn hello(path: &Path, locks: Vec<LockId>) -> (Connection, LockId, Option<OwnedFd>) {
    let connection = Connection::connect(&path.join("rgapsd.sock")).unwrap().unwrap();
    let pidfd = PidFd::own().unwrap();
    let hello = Body::Hello { protocol: PROTOCOL_VERSION, program: TOPIC.to_owned(), layout: LAYOUT_VERSION, locks };
    let (reply, files) = ask(&connection, hello, &[pidfd.as_fd()]);
    let Ok(Reply::Welcome(welcome)) = reply else { panic!("{reply:?}") };
    (connection, welcome.lock, files.into_iter().next())
}

fn ask(connection: &Connection, body: Body, fds: &[BorrowedFd<'_>]) -> (Result<Reply, Refusal>, Vec<OwnedFd>) {
    connection.send(&Request { id: 1, body }, fds).unwrap();
    loop {
        let packet = connection.receive::<ToClient>(LIMIT).unwrap().expect("an answer");
        if let ToClient::Reply { reply, .. } = packet.message {
            return (reply, packet.fds);
        }
    }
}

impl Client {
    fn connect(path: &Path) -> Self {
        let (connection, lock, file) = hello(path, Vec::new());
        let lock = (lock, ProcessLock::take(file.unwrap()).unwrap());
        assert!(matches!(ask(&connection, Body::Locked, &[]).0, Ok(Reply::Done)));
        Self { connection, lock }
    }

    /// Connects to the next manager, which knows the client by its lock.
    fn again(self, path: &Path) -> Self {
        let (connection, lock, file) = hello(path, vec![self.lock.0]);
        assert!(lock == self.lock.0 && file.is_none());
        Self { connection, ..self }
    }

    /// Joins the topic. Returns the segment and the file of the subscriber's own words.
    fn subscribe(&self) -> (Subscribed, Vec<OwnedFd>) {
        let key = TopicKey::new(0, TOPIC).unwrap();
        let body = Body::Subscribe { key, type_name: TYPE.to_owned(), qos: SubscriberQos::default() };
        let (reply, fds) = ask(&self.connection, body, &[]);
        let Ok(Reply::Subscribed(subscribed)) = reply else { panic!("{reply:?}") };
        (subscribed, fds)
    }

    /// The number of topics.
    fn topics(&self) -> usize {
        let (reply, _) = ask(&self.connection, Body::Topics { after: None }, &[]);
        let Ok(Reply::Topics { topics, .. }) = reply else { panic!("{reply:?}") };
        topics.len()
    }

    /// Hands its slot back, with this type, and with these file descriptors as segment and own words. Returns why the slot was refused; empty if it
    /// was not.
    fn hand_back(&self, subscribed: &Subscribed, type_name: &str, beside: [BorrowedFd<'_>; 2]) -> Vec<String> {
        let of = Handed::Subscriber { slot: subscribed.slot, qos: SubscriberQos::default(), place: subscribed.place };
        let topic = HandedTopic {
            key: TopicKey::new(0, TOPIC).unwrap(),
            topic: subscribed.topic,
            type_name: type_name.to_owned(),
            slots: vec![HandedSlot { fds: 1, of }],
        };
        let (reply, _) = ask(&self.connection, Body::HandBack { topics: vec![topic] }, &beside);
        let Ok(Reply::HandedBack { refused }) = reply else { panic!("{reply:?}") };
        assert!(refused.iter().all(|refused| refused.slot == EndpointSlot::from(subscribed.slot)));
        refused.into_iter().map(|refused| refused.why).collect()
    }
}

/// A member whose manager has died, with what that manager gave it; and the next manager, which knows the member.
struct Successor {
    member: Client,
    subscribed: Subscribed,
    segment: OwnedFd,
    own: OwnedFd,
    _manager: Child,
    _host: Host,
}

impl Successor {
    fn of(host: Host) -> Self {
        let mut first = rgapsd(&host);
        let member = as_member(|| Client::connect(host.path()));
        let (subscribed, mut fds) = member.subscribe();
        let (own, segment) = (fds.pop().unwrap(), fds.pop().unwrap());
        first.kill().unwrap();
        let manager = rgapsd(&host);
        let member = as_member(|| member.again(host.path()));
        Self { member, subscribed, segment, own, _manager: manager, _host: host }
    }

    fn hand_back(&self, segment: impl AsFd, own: impl AsFd) -> Vec<String> {
        self.member.hand_back(&self.subscribed, TYPE, [segment.as_fd(), own.as_fd()])
    }
}

/// A file of the manager's user at a path. Dropping this removes it.
struct Other(PathBuf);

impl Other {
    fn mode(&self) -> u32 {
        std::fs::metadata(&self.0).unwrap().permissions().mode() & 0o7777
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn a_file_that_a_member_hands_back_as_memory_keeps_its_mode() {
    let Some(host) = host("modes") else { return };
    let file = Other(std::env::temp_dir().join(format!("rgaps-program-{}", std::process::id())));
    std::fs::write(&file.0, "#!/bin/sh\n").unwrap();
    std::fs::set_permissions(&file.0, std::fs::Permissions::from_mode(0o755)).unwrap();
    let opened = as_member(|| {
        assert!(std::fs::File::options().write(true).open(&file.0).is_err(), "it is another user's");
        std::fs::File::open(&file.0).unwrap()
    });
    let next = Successor::of(host);
    for (what, segment, own) in
        [("segment", opened.as_fd(), next.own.as_fd()), ("own words", next.segment.as_fd(), opened.as_fd())]
    {
        let why = next.hand_back(segment, own);
        assert_eq!(why.len(), 1, "as {what}: it is not memory of the topic");
        assert_eq!(file.mode(), 0o755, "as {what}, which was refused: {why:?}; octal {:o}", file.mode());
    }
    assert!(next.hand_back(&next.segment, &next.own).is_empty(), "what the member has is taken back all the same");
}

#[test]
fn a_pipe_that_a_member_hands_back_as_memory_stops_no_manager() {
    let Some(host) = host("pipes") else { return };
    let pipe = Other(std::env::temp_dir().join(format!("rgaps-pipe-{}", std::process::id())));
    rustix::fs::mknodat(CWD, &pipe.0, FileType::Fifo, Mode::from_raw_mode(0o644), 0).unwrap();
    assert!(std::fs::metadata(&pipe.0).unwrap().file_type().is_fifo());
    // The pipe has no writer: opening it for reading would block.
    let opened = rustix::fs::open(&pipe.0, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty()).unwrap();
    let next = Successor::of(host);
    for (what, segment, own) in
        [("segment", opened.as_fd(), next.own.as_fd()), ("own words", next.segment.as_fd(), opened.as_fd())]
    {
        assert_eq!(next.hand_back(segment, own).len(), 1, "as {what}: it is not memory of the topic");
    }
    assert!(next.hand_back(&next.segment, &next.own).is_empty(), "what the member has is taken back all the same");
}

/// A client of the manager's own user, and a member, in one topic whose manager has died. Neither has handed anything back to the next one yet.
struct Pair {
    of_own: (Client, Subscribed, Vec<OwnedFd>),
    of_member: (Client, Subscribed, Vec<OwnedFd>),
    _manager: Child,
    _host: Host,
}

impl Pair {
    fn of(host: Host) -> Self {
        let mut first = rgapsd(&host);
        let (own, member) = (Client::connect(host.path()), as_member(|| Client::connect(host.path())));
        let ((of_own, own_fds), (of_member, member_fds)) = (own.subscribe(), member.subscribe());
        first.kill().unwrap();
        let manager = rgapsd(&host);
        let (own, member) = (own.again(host.path()), as_member(|| member.again(host.path())));
        Self {
            of_own: (own, of_own, own_fds),
            of_member: (member, of_member, member_fds),
            _manager: manager,
            _host: host,
        }
    }
}

/// A member hands back forged memory before the other client hands back the real one. The manager refuses it, and both clients keep their slots.
fn a_lie_that_comes_first_is_refused(pair: &Pair, type_name: &str, segment: BorrowedFd<'_>) {
    let Pair { of_own: (own, own_slot, own_fds), of_member: (member, slot, fds), .. } = pair;
    let believed = member.hand_back(slot, type_name, [segment, fds[1].as_fd()]).is_empty();
    let lost = own.hand_back(own_slot, TYPE, [own_fds[0].as_fd(), own_fds[1].as_fd()]);
    assert!(!believed && lost.is_empty(), "forgery accepted: {believed}; the other client's slots refused: {lost:?}");
    assert!(member.hand_back(slot, TYPE, [fds[0].as_fd(), fds[1].as_fd()]).is_empty(), "the real memory is accepted");
}

#[test]
fn a_member_that_hands_back_first_gives_a_topic_no_other_segment() {
    let Some(host) = host("forged") else { return };
    let pair = Pair::of(host);
    let topic = pair.of_member.1.topic.0;
    a_lie_that_comes_first_is_refused(&pair, TYPE, as_member(|| Segment::create(topic).unwrap()).as_fd());
    let Some(host) = self::host("another") else { return };
    let pair = Pair::of(host);
    // A segment of the manager's own user, like one whose file descriptor a member has got hold of.
    a_lie_that_comes_first_is_refused(&pair, TYPE, Segment::create(pair.of_member.1.topic.0).unwrap().as_fd());
}

#[test]
fn a_member_that_hands_back_first_gives_a_topic_no_other_type() {
    let Some(host) = host("type") else { return };
    let pair = Pair::of(host);
    a_lie_that_comes_first_is_refused(&pair, "somebody/Else", pair.of_member.2[0].as_fd());
}

#[test]
fn a_topic_is_taken_over_from_no_member_that_hands_back_only_others_slots() {
    let Some(host) = host("others") else { return };
    let Pair { of_own: (own, own_slot, own_fds), of_member: (member, slot, fds), .. } = &Pair::of(host);
    let own_fds = [own_fds[0].as_fd(), own_fds[1].as_fd()];
    assert_eq!(member.hand_back(own_slot, TYPE, own_fds).len(), 1, "it is another's slot");
    assert_eq!(member.topics(), 0, "topics that were taken over");
    assert!(own.hand_back(own_slot, TYPE, own_fds).is_empty());
    assert!(member.hand_back(slot, TYPE, [fds[0].as_fd(), fds[1].as_fd()]).is_empty());
    assert_eq!(member.topics(), 1);
}

#[test]
fn a_member_can_write_nothing_into_the_file_of_its_lock() {
    use std::io::Write;
    let Some(host) = host("lock-file") else { return };
    let _manager = rgapsd(&host);
    let (connection, lock, written) = as_member(|| {
        let (connection, _, file) = hello(host.path(), Vec::new());
        let file = file.unwrap();
        let written = std::fs::File::from(file.try_clone().unwrap()).write(&[1; 4096]).unwrap_or(0);
        (connection, ProcessLock::take(file).unwrap(), written)
    });
    assert_eq!(written, 0, "B into a file of the manager's user");
    assert!(matches!(ask(&connection, Body::Locked, &[]).0, Ok(Reply::Done)), "it is seen to hold it");
    drop(lock);
}
