//! Nodes, and the versions of the library.

use std::ffi::{c_char, c_void};
use std::mem::MaybeUninit;

use rgaps::device::DeviceKind;
use rgaps::{Node, NodeBuilder};

use crate::handle::{ENTRIES_MAX, Table, What};
use crate::raw;
use crate::status::{Failure, guard, rgaps_status_t};
use crate::types::{fixed_text, rgaps_device_t};

/// The version of this ABI. It changes when a program built against an older rgaps.h cannot work with this library.
pub const RGAPS_ABI_VERSION: u32 = 2;

/// A process's connection to the host's manager, and the factory of publishers and subscribers. Usable from any thread, but not after fork.
pub struct rgaps_node_t {
    _handle: c_void,
}

static NODES: Table<Node> = Table::new(What::Node);

/// A node's settings. Start from `rgaps_node_options_default`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rgaps_node_options_t {
    /// The name that tools show; NULL takes the program's name.
    pub name: *const c_char,
    /// The runtime directory of the manager to connect to; NULL takes RGAPS_RUNTIME_DIR, else the user's own.
    pub runtime_dir: *const c_char,
    /// The GPU whose streams this node uses, such as "cuda:0"; NULL takes the GPU that has the host's pools.
    pub device: *const c_char,
    /// ROS domain id; -1 takes ROS_DOMAIN_ID, else 0.
    pub domain: i64,
    /// Not 0: never start a manager.
    pub no_autostart: u32,
    /// Not 0: the node is part of a ROS 2 node. If it starts the manager and no setting limits the network, the manager admits other hosts of the
    /// subnet, as the RMW does.
    pub ros_node: u32,
}

/// A topic that the host knows of.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rgaps_topic_t {
    /// Fully qualified name; ends with a zero.
    pub name: [c_char; 256],
    /// Its type, such as "rgaps/Image"; ends with a zero.
    pub type_name: [c_char; 256],
    /// ROS domain id.
    pub domain: u32,
    /// Publishers on this host.
    pub publishers: u32,
    /// Subscribers on this host.
    pub subscribers: u32,
    /// Hosts that publish it, this one included.
    pub publishing_hosts: u32,
    /// Hosts that subscribe to it, this one included.
    pub subscribing_hosts: u32,
    /// 0.
    pub reserved: u32,
}

/// The version of the ABI that this library has.
#[unsafe(no_mangle)]
pub extern "C" fn rgaps_abi_version() -> u32 {
    RGAPS_ABI_VERSION
}

/// The version of RGAPS, as "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn rgaps_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// Settings that work on one machine.
#[unsafe(no_mangle)]
pub extern "C" fn rgaps_node_options_default() -> rgaps_node_options_t {
    let none = std::ptr::null();
    rgaps_node_options_t { name: none, runtime_dir: none, device: none, domain: -1, no_autostart: 0, ros_node: 0 }
}

/// Creates a node: connects to the host's manager, and starts one if none runs. Call it through `rgaps_node_create`.
///
/// From then on the library writes warnings and errors to standard error, such as a setting without effect or a QoS that does not match. RGAPS_LOG
/// names another level: off, error, warn, info, debug or trace.
///
/// @param abi_version  RGAPS_ABI_VERSION of the header that the program was built with
/// @param options      NULL takes the defaults
/// @param node         the node; destroy it with `rgaps_node_destroy`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_node_create_abi(
    abi_version: u32,
    options: Option<&rgaps_node_options_t>,
    node: Option<&mut MaybeUninit<*mut rgaps_node_t>>,
) -> rgaps_status_t {
    guard(|| {
        check_abi(abi_version)?;
        let node = node.ok_or_else(|| Failure::null("node"))?;
        // False if an earlier node has started it.
        let _ = rgaps::log::to_standard_error();
        let made = match options {
            Some(options) => builder(options)?.build()?,
            None => Node::builder().build()?,
        };
        node.write(handle(&NODES, made)?);
        Ok(())
    })
}

/// Destroys a node. Its publishers, subscribers and messages stay usable until they are destroyed. NULL is not an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_node_destroy(node: *mut rgaps_node_t) {
    let _ = guard(|| {
        if !node.is_null() {
            NODES.remove(node as u64)?;
        }
        Ok(())
    });
}

/// The device that has the node's payloads. Pointers to payloads are pointers of this device; on the host backend, plain pointers.
///
/// ```c
/// rgaps_device_t device;
/// check(rgaps_node_device(node, &device));
/// if (device.device_type == 2) printf("payloads are on GPU %d\n", device.device_id);
/// ```
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_node_device(
    node: *const rgaps_node_t,
    device: Option<&mut MaybeUninit<rgaps_device_t>>,
) -> rgaps_status_t {
    guard(|| {
        let backend = look_up(node)?.device().clone();
        let device = device.ok_or_else(|| Failure::null("device"))?;
        let (device_type, device_id) = match backend.as_cuda() {
            Some(cuda) if backend.kind() == DeviceKind::Cuda => (2, cuda.gpu().properties().ordinal as i32),
            _ => (1, 0),
        };
        device.write(rgaps_device_t { device_type, device_id });
        Ok(())
    })
}

/// The topics that this host knows.
///
/// ```c
/// rgaps_topic_t topics[64];
/// uint64_t count;
/// check(rgaps_node_topics(node, topics, 64, &count));
/// for (uint64_t i = 0; i < count && i < 64; i++)
///   printf("%s (%s): %u publishers\n", topics[i].name, topics[i].type_name, topics[i].publishers);
/// ```
///
/// @param topics    an array of `capacity` elements to fill
/// @param count     the number of topics, which may exceed `capacity`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_node_topics(
    node: *const rgaps_node_t,
    topics: *mut rgaps_topic_t,
    capacity: u64,
    count: Option<&mut MaybeUninit<u64>>,
) -> rgaps_status_t {
    guard(|| {
        let node = look_up(node)?;
        let places = raw::places(topics, capacity, "topics")?;
        let count = count.ok_or_else(|| Failure::null("count"))?;
        let all = node.topics()?;
        for (place, topic) in places.iter_mut().zip(&all) {
            place.write(rgaps_topic_t {
                name: fixed_text("topic", topic.key.name())?,
                type_name: fixed_text("type", &topic.type_name)?,
                domain: topic.key.domain(),
                publishers: topic.publishers,
                subscribers: topic.subscribers,
                publishing_hosts: topic.publishing_hosts.len() as u32,
                subscribing_hosts: topic.subscribing_hosts.len() as u32,
                reserved: 0,
            });
        }
        count.write(all.len() as u64);
        Ok(())
    })
}

pub(crate) fn look_up(node: *const rgaps_node_t) -> Result<Node, Failure> {
    Ok(NODES.look_up(node as u64)?)
}

/// Gives an object a handle.
pub(crate) fn handle<T: Clone, H>(table: &Table<T>, object: T) -> Result<*mut H, Failure> {
    let handle = table.insert(object).ok_or_else(|| {
        Failure::new(rgaps_status_t::RGAPS_NO_SPACE, format_args!("{ENTRIES_MAX} handles are in use"))
    })?;
    Ok(handle as *mut H)
}

pub(crate) fn check_abi(version: u32) -> Result<(), Failure> {
    if version == RGAPS_ABI_VERSION {
        return Ok(());
    }
    let text = format!(
        "this program was built with rgaps.h of ABI {version}, librgaps has ABI {RGAPS_ABI_VERSION}; build it again, or install the librgaps \
         that it was built with"
    );
    Err(Failure::new(rgaps_status_t::RGAPS_WRONG_VERSION, text))
}

fn builder(options: &rgaps_node_options_t) -> Result<NodeBuilder, Failure> {
    let mut builder = Node::builder();
    if let Some(name) = raw::optional_text(options.name, "name")? {
        builder = builder.name(name);
    }
    if let Some(path) = raw::optional_text(options.runtime_dir, "runtime_dir")? {
        builder = builder.runtime_dir(path);
    }
    if let Some(device) = raw::optional_text(options.device, "device")? {
        builder = builder.device(device.parse()?);
    }
    match options.domain {
        -1 => {}
        domain => {
            let domain = u32::try_from(domain);
            builder =
                builder.domain(domain.map_err(|_| Failure::argument(format_args!("domain is {}", options.domain)))?);
        }
    }
    if options.no_autostart != 0 {
        builder = builder.no_autostart();
    }
    if options.ros_node != 0 {
        builder = builder.ros_node();
    }
    Ok(builder)
}
