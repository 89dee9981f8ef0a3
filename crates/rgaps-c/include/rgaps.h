/**
 * @file
 * RGAPS: GPU-resident images, point clouds and tensors between the processes of a robot and between its computers.
 *
 * Made by cbindgen of crates/rgaps-c/src; do not edit.
 *
 * - **Handles**: rgaps_node_t and the like are handles, not pointers to memory: NULL, released and wrong ones are errors, never crashes.
 * - **Results**: a call returns RGAPS_OK, or a status with a reason in rgaps_error_text(). Outputs are written on RGAPS_OK only, except those of
 *   rgaps_publisher_publish_all.
 * - **Threads**: any threads may use a node, publisher or subscriber at the same time; a loan or a message, one thread at a time.
 * - **fork**: a child cannot use its parent's objects (RGAPS_FORKED); it creates a node of its own.
 * - **Devices**: rgaps_node_device says where payloads are: on a GPU or in host memory. A call that takes a stream works in stream order.
 * - **Examples**: `node` is a node. `check(status)` is a function of the program that handles every status but RGAPS_OK.
 */

#ifndef RGAPS_H
#define RGAPS_H

#include <stddef.h>
#include <stdint.h>

/* Declared in dlpack.h, which only programs that read tensors need. */
struct DLManagedTensorVersioned;


/**
 * Generations of forked processes with their own tables; the 33rd uses the first one's again.
 */
#define FORKS 32

/**
 * The version of this ABI. It changes when a program built against an older rgaps.h cannot work with this library.
 */
#define RGAPS_ABI_VERSION 2

/**
 * Most parameters of a publisher or subscription.
 */
#define RGAPS_ROS_PARAMETERS_MAX 8

/**
 * Maximum wait of a pull in ns.
 */
#define RGAPS_PULL_TIMEOUT_NS 1000000000

/**
 * The result of a call. Outputs are unchanged unless it is `RGAPS_OK`, except those of `rgaps_publisher_publish_all`. `rgaps_error_text` has the
 * details of all others but `RGAPS_NO_MESSAGE`.
 */
typedef enum {
  /**
   * Success.
   */
  RGAPS_OK = 0,
  /**
   * No message is ready. Not an error.
   */
  RGAPS_NO_MESSAGE = 1,
  /**
   * The time-out expired.
   */
  RGAPS_TIMED_OUT = 2,
  /**
   * An argument is NULL but must not be, contradicts itself, or is out of range.
   */
  RGAPS_INVALID_ARGUMENT = 3,
  /**
   * A handle is NULL, released, of another kind of object, or not a handle.
   */
  RGAPS_INVALID_HANDLE = 4,
  /**
   * The program and the library, or two programs, have different versions.
   */
  RGAPS_WRONG_VERSION = 5,
  /**
   * The message, metadata, topic or call are not of the same kind.
   */
  RGAPS_WRONG_KIND = 6,
  /**
   * The pool or the message table is full. Release messages or make the pool larger.
   */
  RGAPS_NO_SPACE = 7,
  /**
   * The manager, rgapsd, is not running, could not be started or does not answer.
   */
  RGAPS_NO_MANAGER = 8,
  /**
   * The manager refused the request: no free slot in the topic, no such topic, no memory.
   */
  RGAPS_REFUSED = 9,
  /**
   * A device operation failed.
   */
  RGAPS_DEVICE_ERROR = 10,
  /**
   * The message's bytes were never written: its publisher died, or its device failed.
   */
  RGAPS_POISONED = 11,
  /**
   * This process was forked from the one that created the object.
   */
  RGAPS_FORKED = 12,
  /**
   * Shared memory has invalid values, written by another process. They were not used.
   */
  RGAPS_CORRUPT = 13,
  /**
   * A system call failed.
   */
  RGAPS_SYSTEM_ERROR = 14,
  /**
   * A defect of the library. The call was aborted.
   */
  RGAPS_INTERNAL_ERROR = 15,
  /**
   * A handle names a message that this subscriber neither has nor will get.
   */
  RGAPS_STALE = 16,
  /**
   * A handle names a message that was published before the subscriber joined.
   */
  RGAPS_EARLY = 17,
  /**
   * The publisher or subscriber has lost its slot: the manager died, and its successor did not take the slot back. Create it again.
   */
  RGAPS_CUT_OFF = 18,
  /**
   * The subscriber holds half of the messages that a publisher can have. Nothing is lost: release some messages and take again.
   */
  RGAPS_TOO_MANY_HELD = 19,
} rgaps_status_t;

/**
 * A kind of message: the type of a topic.
 */
typedef enum {
  /**
   * Raw bytes.
   */
  RGAPS_KIND_BYTES = 0,
  /**
   * Images.
   */
  RGAPS_KIND_IMAGE = 1,
  /**
   * Point clouds.
   */
  RGAPS_KIND_POINT_CLOUD = 2,
  /**
   * Tensors.
   */
  RGAPS_KIND_TENSOR = 3,
} rgaps_kind_t;

/**
 * Whether a publisher matches subscribers that request reliable delivery.
 */
typedef enum {
  /**
   * Does not match a subscriber that requests reliable.
   */
  RGAPS_BEST_EFFORT = 0,
  /**
   * Matches every subscriber. Every link sends unacknowledged messages again after a cut, whatever the reliability.
   */
  RGAPS_RELIABLE = 1,
} rgaps_reliability_t;

/**
 * Whether late joiners get earlier messages.
 */
typedef enum {
  /**
   * No.
   */
  RGAPS_VOLATILE = 0,
  /**
   * Yes, the publisher's last `history_depth` messages. A full pool gives up the oldest of them.
   */
  RGAPS_TRANSIENT_LOCAL = 1,
} rgaps_durability_t;

/**
 * What a publisher does when its pool is full. It first gives up history that no subscriber needs.
 */
typedef enum {
  /**
   * Waits at most `exhaustion_timeout_ms` until subscribers release messages. Then drops the oldest unread messages of keep-last subscribers that
   * read nothing meanwhile; if that is not enough, returns `RGAPS_TIMED_OUT`.
   */
  RGAPS_WAIT = 0,
  /**
   * Takes the oldest unread messages from keep-last subscribers.
   */
  RGAPS_DROP_OLDEST = 1,
  /**
   * Returns `RGAPS_NO_SPACE`.
   */
  RGAPS_REFUSE = 2,
} rgaps_exhaustion_t;

/**
 * Whether a message's bytes are written.
 */
typedef enum {
  /**
   * Not yet: a device still has to write them. Only for messages of `rgaps_subscriber_take_on`.
   */
  RGAPS_READINESS_PENDING = 0,
  /**
   * Yes.
   */
  RGAPS_READINESS_READY = 1,
  /**
   * Never: the publisher died, or its device failed.
   */
  RGAPS_READINESS_POISONED = 2,
} rgaps_readiness_t;

/**
 * Type of the elements of a field, with the codes of sensor_msgs/PointField.
 */
typedef enum {
  /**
   * Signed byte.
   */
  RGAPS_INT8 = 1,
  /**
   * Unsigned byte.
   */
  RGAPS_UINT8 = 2,
  /**
   * Signed, 16 bits.
   */
  RGAPS_INT16 = 3,
  /**
   * Unsigned, 16 bits.
   */
  RGAPS_UINT16 = 4,
  /**
   * Signed, 32 bits.
   */
  RGAPS_INT32 = 5,
  /**
   * Unsigned, 32 bits.
   */
  RGAPS_UINT32 = 6,
  /**
   * Floating point, 32 bits.
   */
  RGAPS_FLOAT32 = 7,
  /**
   * Floating point, 64 bits.
   */
  RGAPS_FLOAT64 = 8,
} rgaps_datatype_t;

/**
 * Type of a tensor's elements, with the codes of DLPack's DLDataTypeCode. Their size is given separately, in bits.
 */
typedef enum {
  /**
   * Signed integers.
   */
  RGAPS_INT = 0,
  /**
   * Unsigned integers.
   */
  RGAPS_UINT = 1,
  /**
   * Floating point.
   */
  RGAPS_FLOAT = 2,
  /**
   * The upper half of a float of 32 bits.
   */
  RGAPS_BFLOAT = 4,
  /**
   * Pairs of floats; the bits count both.
   */
  RGAPS_COMPLEX = 5,
  /**
   * Booleans of 8 bits.
   */
  RGAPS_BOOL = 6,
} rgaps_type_code_t;

/**
 * A publisher or subscription.
 */
typedef enum {
  /**
   * A publisher.
   */
  RGAPS_ROS_PUBLISHER = 0,
  /**
   * A subscription.
   */
  RGAPS_ROS_SUBSCRIPTION = 1,
} rgaps_ros_role_t;

/**
 * The type of a parameter.
 */
typedef enum {
  /**
   * A whole number.
   */
  RGAPS_ROS_INTEGER = 0,
  /**
   * A text.
   */
  RGAPS_ROS_TEXT = 1,
  /**
   * Yes or no: the number 1 or 0.
   */
  RGAPS_ROS_FLAG = 2,
} rgaps_ros_type_t;

/**
 * A buffer of a shared pool. Fill it from one thread; once it is frozen, any thread may read and publish it.
 */
typedef struct rgaps_buffer_t rgaps_buffer_t;

/**
 * A loaned block of a publisher's pool, to be filled. Use it from one thread at a time.
 */
typedef struct rgaps_loan_t rgaps_loan_t;

/**
 * A process's connection to the host's manager, and the factory of publishers and subscribers. Usable from any thread, but not after fork.
 */
typedef struct rgaps_node_t rgaps_node_t;

/**
 * A pool that publishers of several topics share. Usable from any thread.
 */
typedef struct rgaps_pool_t rgaps_pool_t;

/**
 * Publishes messages of one kind on one topic. Usable from any thread.
 */
typedef struct rgaps_publisher_t rgaps_publisher_t;

/**
 * A read or write of a buffer that has begun. It keeps what it reads.
 */
typedef struct rgaps_ros_access_t rgaps_ros_access_t;

/**
 * The bytes of a ROS message, in the process's pool or in that of the publisher that they came from. Usable from any thread.
 */
typedef struct rgaps_ros_buffer_t rgaps_ros_buffer_t;

/**
 * What becomes of the descriptors of a ROS subscription. Usable from any thread.
 */
typedef struct rgaps_ros_payloads_t rgaps_ros_payloads_t;

/**
 * A taken message, in the memory where its publisher wrote it (or the manager, for a message from another host). It stays valid until it is
 * released, however many messages the publisher publishes, and may outlive its subscriber.
 */
typedef struct rgaps_sample_t rgaps_sample_t;

/**
 * Takes messages of one kind from one topic. Usable from any thread.
 */
typedef struct rgaps_subscriber_t rgaps_subscriber_t;

/**
 * The start of all metadata. 104 bytes.
 */
typedef struct {
  /**
   * Seconds since 1970-01-01 UTC, as in builtin_interfaces/Time.
   */
  int32_t sec;
  /**
   * Nanoseconds of that second.
   */
  uint32_t nanosec;
  /**
   * Coordinate frame; for a tensor also its name. UTF-8, padded with zeros; all 64 bytes may be used.
   */
  char frame_id[64];
  /**
   * The application's own bytes.
   */
  uint8_t user[32];
} rgaps_header_t;

/**
 * Metadata of a payload of raw bytes.
 */
typedef struct {
  /**
   * Stamp, frame, the application's bytes.
   */
  rgaps_header_t header;
  /**
   * Length of the payload.
   */
  uint64_t bytes;
} rgaps_bytes_t;

/**
 * Metadata of an image, like sensor_msgs/Image. Initialise it with `rgaps_meta_image`.
 */
typedef struct {
  /**
   * Stamp, frame, the application's bytes.
   */
  rgaps_header_t header;
  /**
   * Pixels of a row.
   */
  uint32_t width;
  /**
   * Rows.
   */
  uint32_t height;
  /**
   * Bytes from one row of the first plane to the next.
   */
  uint32_t step;
  /**
   * Code of the pixel format: `rgaps_encoding_code`, `rgaps_encoding_name`.
   */
  uint32_t encoding;
  /**
   * 1 if channels of more than 8 bits have their high byte first, else 0.
   */
  uint8_t is_bigendian;
  /**
   * 0.
   */
  uint8_t reserved[3];
} rgaps_image_t;

/**
 * One field of every point. Add it with `rgaps_meta_add_field`.
 */
typedef struct {
  /**
   * Name in UTF-8, padded with zeros; all 32 bytes may be used.
   */
  char name[32];
  /**
   * Its first byte in a point.
   */
  uint32_t offset;
  /**
   * An rgaps_datatype_t.
   */
  uint32_t datatype;
  /**
   * Its elements, usually one.
   */
  uint32_t count;
} rgaps_point_field_t;

/**
 * Metadata of a point cloud, like sensor_msgs/PointCloud2. Initialise it with `rgaps_meta_point_cloud`.
 */
typedef struct {
  /**
   * Stamp, frame, the application's bytes.
   */
  rgaps_header_t header;
  /**
   * Points of a row.
   */
  uint32_t width;
  /**
   * Rows; 1 for an unordered cloud.
   */
  uint32_t height;
  /**
   * Bytes from point to point.
   */
  uint32_t point_step;
  /**
   * Bytes from row to row.
   */
  uint32_t row_step;
  /**
   * Number of fields, at most 16.
   */
  uint32_t field_count;
  /**
   * 1 if elements have their high byte first, else 0.
   */
  uint8_t is_bigendian;
  /**
   * 1 if every point is valid, 0 if some may be NaN or infinite.
   */
  uint8_t is_dense;
  /**
   * 0.
   */
  uint8_t reserved[2];
  /**
   * The fields; those past `field_count` are zero.
   */
  rgaps_point_field_t fields[16];
} rgaps_point_cloud_t;

/**
 * Metadata of a tensor, like DLPack's DLTensor. Initialise it with `rgaps_meta_tensor`.
 */
typedef struct {
  /**
   * Stamp, frame or name, the application's bytes.
   */
  rgaps_header_t header;
  /**
   * Number of dimensions, at most 8.
   */
  uint32_t ndim;
  /**
   * An rgaps_type_code_t, or another DLDataTypeCode.
   */
  uint8_t code;
  /**
   * Bits of a lane.
   */
  uint8_t bits;
  /**
   * Lanes of an element, usually one.
   */
  uint16_t lanes;
  /**
   * Elements of each dimension.
   */
  int64_t shape[8];
  /**
   * Elements (not bytes) from one to the next in each dimension.
   */
  int64_t strides[8];
  /**
   * Byte offset of element (0, 0, ...) in the payload.
   */
  uint64_t byte_offset;
} rgaps_tensor_t;

/**
 * The metadata of one kind.
 */
typedef union {
  /**
   * The start of all kinds.
   */
  rgaps_header_t header;
  /**
   * Metadata of raw bytes.
   */
  rgaps_bytes_t bytes;
  /**
   * Metadata of an image.
   */
  rgaps_image_t image;
  /**
   * Metadata of a point cloud.
   */
  rgaps_point_cloud_t point_cloud;
  /**
   * Metadata of a tensor.
   */
  rgaps_tensor_t tensor;
} rgaps_any_meta_t;

/**
 * Metadata with its kind.
 */
typedef struct {
  /**
   * An `rgaps_kind_t`: selects the member of `as`.
   */
  uint32_t kind;
  /**
   * 0.
   */
  uint32_t reserved;
  /**
   * The metadata.
   */
  rgaps_any_meta_t as;
} rgaps_meta_t;

/**
 * A node's settings. Start from `rgaps_node_options_default`.
 */
typedef struct {
  /**
   * The name that tools show; NULL takes the program's name.
   */
  const char *name;
  /**
   * The runtime directory of the manager to connect to; NULL takes RGAPS_RUNTIME_DIR, else the user's own.
   */
  const char *runtime_dir;
  /**
   * The GPU whose streams this node uses, such as "cuda:0"; NULL takes the GPU that has the host's pools.
   */
  const char *device;
  /**
   * ROS domain id; -1 takes ROS_DOMAIN_ID, else 0.
   */
  int64_t domain;
  /**
   * Not 0: never start a manager.
   */
  uint32_t no_autostart;
  /**
   * Not 0: the node is part of a ROS 2 node. If it starts the manager and no setting limits the network, the manager admits other hosts of the
   * subnet, as the RMW does.
   */
  uint32_t ros_node;
} rgaps_node_options_t;

/**
 * A device in DLPack's terms.
 */
typedef struct {
  /**
   * A DLDeviceType: 1 host memory, 2 an NVIDIA GPU.
   */
  int32_t device_type;
  /**
   * Its number in this process; 0 for the host.
   */
  int32_t device_id;
} rgaps_device_t;

/**
 * A topic that the host knows of.
 */
typedef struct {
  /**
   * Fully qualified name; ends with a zero.
   */
  char name[256];
  /**
   * Its type, such as "rgaps/Image"; ends with a zero.
   */
  char type_name[256];
  /**
   * ROS domain id.
   */
  uint32_t domain;
  /**
   * Publishers on this host.
   */
  uint32_t publishers;
  /**
   * Subscribers on this host.
   */
  uint32_t subscribers;
  /**
   * Hosts that publish it, this one included.
   */
  uint32_t publishing_hosts;
  /**
   * Hosts that subscribe to it, this one included.
   */
  uint32_t subscribing_hosts;
  /**
   * 0.
   */
  uint32_t reserved;
} rgaps_topic_t;

/**
 * The QoS that a publisher offers. Start from `rgaps_publisher_qos_default`.
 */
typedef struct {
  /**
   * An `rgaps_reliability_t`.
   */
  uint32_t reliability;
  /**
   * An `rgaps_durability_t`.
   */
  uint32_t durability;
  /**
   * How many of the last messages are kept for late joiners, and for a link that was cut to send again.
   */
  uint32_t history_depth;
  /**
   * An `rgaps_exhaustion_t`.
   */
  uint32_t exhaustion;
  /**
   * Maximum wait for space in a full pool, in ms.
   */
  uint64_t exhaustion_timeout_ms;
  /**
   * Bytes of the publisher's pool; 0 takes the configured size.
   */
  uint64_t pool_bytes;
  /**
   * Not 0: links wait for credit. 0: they do not, and a slow receiver's oldest messages are overwritten and counted.
   */
  uint32_t flow_control;
  /**
   * 0.
   */
  uint32_t reserved;
} rgaps_publisher_qos_t;

/**
 * The name of a message outside RGAPS: the bytes of rgaps_msgs/GpuHandle. It does not hold the message; `rgaps_subscriber_take_by_handle` checks
 * whether it still names one.
 */
typedef struct {
  /**
   * Identity of the publisher's host.
   */
  uint8_t source_host[16];
  /**
   * The topic's segment on the host that wrote this.
   */
  uint8_t topic_id[16];
  /**
   * When the publisher's host started, in ns since 1970.
   */
  uint64_t host_epoch;
  /**
   * Identity of the publisher.
   */
  uint64_t publisher;
  /**
   * The publisher's sequence number, from 1.
   */
  uint64_t sequence;
  /**
   * Position in the topic's order on the host that wrote this.
   */
  uint64_t position;
  /**
   * Bytes of the payload.
   */
  uint64_t payload_bytes;
  /**
   * Index of the message's entry in that host's message table.
   */
  uint32_t entry;
  /**
   * Generation of the entry.
   */
  uint32_t generation;
  /**
   * Version of this layout.
   */
  uint32_t layout_version;
  /**
   * An rgaps_kind_t.
   */
  uint32_t kind;
} rgaps_message_handle_t;

/**
 * A publisher's counters.
 */
typedef struct {
  /**
   * Messages published.
   */
  uint64_t published;
  /**
   * Payload bytes published.
   */
  uint64_t published_bytes;
  /**
   * Loans that were refused or timed out.
   */
  uint64_t refused;
  /**
   * Capacity of the pool in bytes.
   */
  uint64_t pool_bytes;
  /**
   * Bytes of the pool in use.
   */
  uint64_t used_bytes;
  /**
   * Messages that subscribers still need or history keeps.
   */
  uint64_t outstanding;
} rgaps_publisher_statistics_t;

/**
 * A publisher or subscription of a ROS node. Policies are numbers of rmw/types.h. One that is left to the middleware matches every peer.
 */
typedef struct {
  /**
   * The topic's fully qualified name, after remapping.
   */
  const char *topic;
  /**
   * Distinguishes the parameters of endpoints of one node and topic; NULL or empty for none.
   */
  const char *id;
  /**
   * Messages that keep-last keeps; 0 leaves the depth to the middleware.
   */
  uint64_t depth;
  /**
   * An rmw_qos_reliability_policy_t.
   */
  uint32_t reliability;
  /**
   * An rmw_qos_durability_policy_t.
   */
  uint32_t durability;
  /**
   * An rmw_qos_history_policy_t.
   */
  uint32_t history;
  /**
   * An rgaps_ros_role_t.
   */
  uint32_t role;
} rgaps_ros_endpoint_t;

/**
 * A parameter to declare, read-only, and its value: first the default, which the client replaces by the node's. Texts end with a zero.
 */
typedef struct {
  /**
   * Its name, at most 639 B; an endpoint with a longer one is refused.
   */
  char name[640];
  /**
   * What it means.
   */
  char description[256];
  /**
   * The value of a text, cut if it is longer: no valid one is.
   */
  char text[64];
  /**
   * The value of a number or flag.
   */
  int64_t integer;
  /**
   * The smallest number.
   */
  int64_t least;
  /**
   * The largest number.
   */
  int64_t most;
  /**
   * An rgaps_ros_type_t.
   */
  uint32_t type;
  /**
   * 0.
   */
  uint32_t reserved;
} rgaps_ros_parameter_t;

/**
 * The QoS that a subscriber requests. Start from `rgaps_subscriber_qos_default`.
 */
typedef struct {
  /**
   * An `rgaps_reliability_t`.
   */
  uint32_t reliability;
  /**
   * An `rgaps_durability_t`.
   */
  uint32_t durability;
  /**
   * How many unread messages are kept (keep-last); older ones are lost and counted. 0 is keep-all: publishers wait.
   */
  uint32_t depth;
  /**
   * 0.
   */
  uint32_t reserved;
} rgaps_subscriber_qos_t;

/**
 * Writes a line to the log of a ROS node: a warning, or if `is_warning` is 0 a line for debugging. It must not throw.
 */
typedef void (*rgaps_ros_log_t)(void *context, uint32_t is_warning, const char *text);

/**
 * A counter of a status.
 */
typedef struct {
  /**
   * Its name; ends with a zero.
   */
  char name[24];
  /**
   * Its value.
   */
  uint64_t value;
} rgaps_ros_counter_t;

/**
 * The status of a publisher or subscription on /diagnostics. Set it to zeros first, and pass the last one to each call: the level is WARN if a
 * counter that tells of a fault has grown since.
 */
typedef struct {
  /**
   * Node, endpoint and topic; ends with a zero.
   */
  char name[1024];
  /**
   * "ok", or what went wrong and what to do; ends with a zero.
   */
  char message[512];
  /**
   * Its counters.
   */
  rgaps_ros_counter_t counters[8];
  /**
   * How many they are.
   */
  uint32_t count;
  /**
   * Not 0: the level is WARN.
   */
  uint32_t is_warning;
} rgaps_ros_status_t;

/**
 * Counters of a process's buffers, since its start.
 */
typedef struct {
  /**
   * Buffers that were allocated.
   */
  uint64_t allocated;
  /**
   * Payloads that were published, once for each subscription.
   */
  uint64_t published;
  /**
   * Messages that a subscription which accepts these buffers got as bytes: it was not reached, the bytes were being written, or the payload could not
   * be published. Subscriptions that take only bytes are not counted.
   */
  uint64_t as_bytes;
  /**
   * Copies on the device: of buffers that were written after publication, came from another process, or were cloned while they were filled.
   */
  uint64_t copied;
  /**
   * Descriptors that were received.
   */
  uint64_t received;
  /**
   * Descriptors whose payload turned out to be missing, lost or invalid.
   */
  uint64_t refused;
  /**
   * Subscriptions, in this process and others, that a payload of this process reaches now.
   */
  uint64_t reached;
  /**
   * Bytes of the pool that are in use.
   */
  uint64_t used_bytes;
} rgaps_ros_buffers_statistics_t;

/**
 * What middleware carries in place of the bytes, for one subscription: the bytes of rgaps_msgs/BufferDescriptor.
 */
typedef struct {
  /**
   * The payload's name.
   */
  rgaps_message_handle_t handle;
  /**
   * The identity of the subscription that it is for, in its middleware (rmw_gid_t).
   */
  uint8_t subscription[16];
  /**
   * The subscription on whose topic the payload is: this one, or another on its host.
   */
  uint8_t topic[16];
  /**
   * The subscription whose topic this one is to join; all zeros for none.
   */
  uint8_t join[16];
  /**
   * The publishing process, to be told of the join.
   */
  uint64_t process;
} rgaps_ros_descriptor_t;

/**
 * A message's origin, its route and the time of each stage.
 */
typedef struct {
  /**
   * Position in the topic's order on this host.
   */
  uint64_t position;
  /**
   * Identity of the publisher.
   */
  uint64_t publisher;
  /**
   * The publisher's sequence number, from 1.
   */
  uint64_t sequence;
  /**
   * Bytes of the payload.
   */
  uint64_t bytes;
  /**
   * Identity of the publisher's host.
   */
  uint8_t source_host[16];
  /**
   * When it was published, in ns since 1970 on the publisher's host. This and the following times are 0 if there was no such stage.
   */
  uint64_t published_ns;
  /**
   * When the publisher's manager took it.
   */
  uint64_t staged_ns;
  /**
   * When its first byte was given to the link.
   */
  uint64_t sent_ns;
  /**
   * When its last byte was in the receive ring, on this host.
   */
  uint64_t landed_ns;
  /**
   * When its last byte was in this host's pool.
   */
  uint64_t pooled_ns;
  /**
   * When it was taken.
   */
  uint64_t taken_ns;
  /**
   * Device number of the pool's file. This and the next two are the same for every subscriber of a host.
   */
  uint64_t pool_device;
  /**
   * Inode of the pool's file.
   */
  uint64_t pool_inode;
  /**
   * Offset of the payload in the pool.
   */
  uint64_t pool_offset;
  /**
   * An `rgaps_kind_t`.
   */
  uint32_t kind;
  /**
   * How it was published: 0 unknown, 1 loaned, 2 pushed.
   */
  uint8_t origin;
  /**
   * How it reached this host: 0 published here, 1 over TCP, 2 over RDMA.
   */
  uint8_t route;
  /**
   * Why it took no better route: 0 there is none, 1 pushed, 2 by configuration, 3 no RDMA device, 4 RDMA failed, 5 no flow control.
   */
  uint8_t route_reason;
  /**
   * Copies into the block: by a push, or of a loan that was filled in other memory.
   */
  uint8_t copies_pushed;
  /**
   * Copies from the device to staging.
   */
  uint8_t copies_staged;
  /**
   * Copies into this host's pool.
   */
  uint8_t copies_pooled;
  /**
   * 0.
   */
  uint8_t reserved[6];
} rgaps_info_t;

/**
 * A subscriber's counters.
 */
typedef struct {
  /**
   * Messages taken.
   */
  uint64_t taken;
  /**
   * Messages lost: they exceeded the depth, their publisher needed their space, or they were lost between hosts.
   */
  uint64_t lost;
  /**
   * Messages whose bytes were never written.
   */
  uint64_t poisoned;
  /**
   * Messages held now.
   */
  uint64_t held;
  /**
   * Bytes that were copied for this subscriber: device memory copied to the host, or to a GPU without peer access. Usually 0.
   */
  uint64_t copied_bytes;
  /**
   * Messages that were skipped because their metadata does not fit their payload, or their bytes are outside their pool.
   */
  uint64_t malformed;
} rgaps_subscriber_statistics_t;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Metadata of raw bytes.
 */
rgaps_status_t rgaps_meta_bytes(rgaps_meta_t *meta, uint64_t bytes);

/**
 * Metadata of an image whose rows follow each other without gaps. For rows with gaps, raise `as.image.step` afterwards.
 *
 * ```c
 * rgaps_meta_t meta;
 * check(rgaps_meta_image(&meta, 1000, 10, "rgb8"));
 * meta.as.image.step = 3072;  // a camera that aligns rows to 256 B
 * assert(rgaps_meta_payload_bytes(&meta) == 30720);
 * ```
 *
 * @param encoding  a name of sensor_msgs/image_encodings, such as "rgb8", "mono8", "16UC1" or "nv12"
 */
rgaps_status_t rgaps_meta_image(rgaps_meta_t *meta, uint32_t width, uint32_t height, const char *encoding);

/**
 * Metadata of a cloud of `width` x `height` points of `point_step` bytes that follow each other without gaps; dense, little-endian. Add fields with
 * `rgaps_meta_add_field`.
 *
 * ```c
 * rgaps_meta_t meta;
 * check(rgaps_meta_point_cloud(&meta, 1000, 1, 16));
 * check(rgaps_meta_add_field(&meta, "x", 0, RGAPS_FLOAT32));
 * check(rgaps_meta_add_field(&meta, "y", 4, RGAPS_FLOAT32));
 * check(rgaps_meta_add_field(&meta, "z", 8, RGAPS_FLOAT32));
 * check(rgaps_meta_add_field(&meta, "ring", 12, RGAPS_UINT16));
 * assert(rgaps_meta_payload_bytes(&meta) == 16000);
 * ```
 */
rgaps_status_t rgaps_meta_point_cloud(rgaps_meta_t *meta,
                                      uint32_t width,
                                      uint32_t height,
                                      uint32_t point_step);

/**
 * Adds a field of one element to the metadata of a cloud.
 *
 * @param name      such as "x" or "intensity", at most 32 bytes
 * @param offset    its first byte in a point
 * @param datatype  an rgaps_datatype_t, such as RGAPS_FLOAT32. For several elements, set `count` of the field in `as.point_cloud.fields`.
 */
rgaps_status_t rgaps_meta_add_field(rgaps_meta_t *meta,
                                    const char *name,
                                    uint32_t offset,
                                    uint32_t datatype);

/**
 * Metadata of a tensor in C order: the last dimension is contiguous, without gaps and without offset.
 *
 * ```c
 * rgaps_meta_t meta;
 * const int64_t shape[] = {1, 3, 224, 224};
 * check(rgaps_meta_tensor(&meta, RGAPS_FLOAT, 32, 4, shape));
 * assert(rgaps_meta_payload_bytes(&meta) == 602112);
 * ```
 *
 * @param code   an rgaps_type_code_t, such as RGAPS_FLOAT, or another DLDataTypeCode of DLPack's
 * @param bits   of an element
 * @param ndim   dimensions, at most 8
 * @param shape  elements of each dimension
 */
rgaps_status_t rgaps_meta_tensor(rgaps_meta_t *meta, uint32_t code, uint32_t bits, uint32_t ndim, const int64_t *shape);

/**
 * Sets stamp and frame of metadata.
 *
 * ```c
 * rgaps_meta_t meta;
 * check(rgaps_meta_bytes(&meta, 64));
 * check(rgaps_meta_set_header(&meta, rgaps_now(), "lidar_front"));
 * ```
 *
 * @param ns        ns since 1970, such as `rgaps_now()`
 * @param frame_id  at most 64 bytes; NULL leaves it empty
 */
rgaps_status_t rgaps_meta_set_header(rgaps_meta_t *meta, uint64_t ns, const char *frame_id);

/**
 * The present time in ns since 1970 on this host's clock.
 */
uint64_t rgaps_now(void);

/**
 * Bytes of the payload that metadata describes; 0 if the metadata is invalid (see `rgaps_error_text`).
 */
uint64_t rgaps_meta_payload_bytes(const rgaps_meta_t *meta);

/**
 * The code of an encoding's name; 0 if the name is unknown.
 *
 * ```c
 * assert(rgaps_encoding_code("rgb8") == 3 && rgaps_encoding_code("rgb9") == 0);
 * assert(strcmp(rgaps_encoding_name(3), "rgb8") == 0);
 * ```
 */
uint32_t rgaps_encoding_code(const char *name);

/**
 * The name of an encoding's code; NULL if the code is unknown.
 */
const char *rgaps_encoding_name(uint32_t code);

/**
 * The field of a cloud with this name.
 *
 * ```c
 * rgaps_meta_t meta;
 * rgaps_point_field_t z;
 * check(rgaps_meta_point_cloud(&meta, 1000, 1, 12));
 * check(rgaps_meta_add_field(&meta, "z", 8, RGAPS_FLOAT32));
 * check(rgaps_meta_field(&meta, "z", &z));
 * assert(z.offset == 8 && z.datatype == RGAPS_FLOAT32 && z.count == 1);
 * ```
 */
rgaps_status_t rgaps_meta_field(const rgaps_meta_t *meta, const char *name, rgaps_point_field_t *field);

/**
 * The version of the ABI that this library has.
 */
uint32_t rgaps_abi_version(void);

/**
 * The version of RGAPS, as "0.1.0".
 */
const char *rgaps_version(void);

/**
 * Settings that work on one machine.
 */
rgaps_node_options_t rgaps_node_options_default(void);

/**
 * Creates a node: connects to the host's manager, and starts one if none runs. Call it through `rgaps_node_create`.
 *
 * From then on the library writes warnings and errors to standard error, such as a setting without effect or a QoS that does not match. RGAPS_LOG
 * names another level: off, error, warn, info, debug or trace.
 *
 * @param abi_version  RGAPS_ABI_VERSION of the header that the program was built with
 * @param options      NULL takes the defaults
 * @param node         the node; destroy it with `rgaps_node_destroy`
 */
rgaps_status_t rgaps_node_create_abi(uint32_t abi_version,
                                     const rgaps_node_options_t *options,
                                     rgaps_node_t **node);

/**
 * Destroys a node. Its publishers, subscribers and messages stay usable until they are destroyed. NULL is not an error.
 */
void rgaps_node_destroy(rgaps_node_t *node);

/**
 * The device that has the node's payloads. Pointers to payloads are pointers of this device; on the host backend, plain pointers.
 *
 * ```c
 * rgaps_device_t device;
 * check(rgaps_node_device(node, &device));
 * if (device.device_type == 2) printf("payloads are on GPU %d\n", device.device_id);
 * ```
 */
rgaps_status_t rgaps_node_device(const rgaps_node_t *node,
                                 rgaps_device_t *device);

/**
 * The topics that this host knows.
 *
 * ```c
 * rgaps_topic_t topics[64];
 * uint64_t count;
 * check(rgaps_node_topics(node, topics, 64, &count));
 * for (uint64_t i = 0; i < count && i < 64; i++)
 *   printf("%s (%s): %u publishers\n", topics[i].name, topics[i].type_name, topics[i].publishers);
 * ```
 *
 * @param topics    an array of `capacity` elements to fill
 * @param count     the number of topics, which may exceed `capacity`
 */
rgaps_status_t rgaps_node_topics(const rgaps_node_t *node, rgaps_topic_t *topics, uint64_t capacity, uint64_t *count);

/**
 * Creates a pool of `bytes` bytes that publishers of several topics share: one buffer of it can be a message of each.
 *
 * ```c
 * rgaps_pool_t *pool;
 * rgaps_publisher_t *left, *right;
 * rgaps_buffer_t *buffer;
 * rgaps_meta_t meta;
 * void *data;
 * check(rgaps_pool_create(node, 64 << 20, NULL, &pool));
 * check(rgaps_publisher_create_in_pool(pool, "left", RGAPS_KIND_BYTES, NULL, &left));
 * check(rgaps_publisher_create_in_pool(pool, "right", RGAPS_KIND_BYTES, NULL, &right));
 * check(rgaps_pool_allocate(pool, 5, &buffer));
 * check(rgaps_buffer_data(buffer, &data, NULL));
 * memcpy(data, "hello", 5);
 * check(rgaps_buffer_freeze(buffer, NULL));
 * check(rgaps_meta_bytes(&meta, 5));
 * check(rgaps_publisher_publish_buffer(left, &meta, buffer, NULL, NULL));
 * check(rgaps_publisher_publish_buffer(right, &meta, buffer, NULL, NULL));  // the same bytes, not a copy
 * rgaps_buffer_release(buffer);
 * rgaps_pool_destroy(pool);
 * ```
 *
 * @param qos   its `exhaustion` and `exhaustion_timeout_ms` say what `rgaps_pool_allocate` does when the pool is full; NULL takes the default
 * @param pool  destroy it with `rgaps_pool_destroy`
 */
rgaps_status_t rgaps_pool_create(const rgaps_node_t *node,
                                 uint64_t bytes,
                                 const rgaps_publisher_qos_t *qos,
                                 rgaps_pool_t **pool);

/**
 * Destroys a pool. Its buffers and publishers can still be used; its memory is freed after the last of them. NULL is not an error.
 */
void rgaps_pool_destroy(rgaps_pool_t *pool);

/**
 * Bytes in blocks: of buffers, and of messages that are not released. 0 if the handle is invalid.
 */
uint64_t rgaps_pool_used_bytes(const rgaps_pool_t *pool);

/**
 * Creates a publisher in a pool, like `rgaps_publisher_create`; `pool_bytes` has no effect. Its loans and pushes use the pool, too.
 *
 * @param kind       an rgaps_kind_t
 * @param qos        NULL takes the default
 * @param publisher  the publisher; destroy it with `rgaps_publisher_destroy`
 */
rgaps_status_t rgaps_publisher_create_in_pool(const rgaps_pool_t *pool,
                                              const char *topic,
                                              uint32_t kind,
                                              const rgaps_publisher_qos_t *qos,
                                              rgaps_publisher_t **publisher);

/**
 * Allocates a buffer. Its bytes are not cleared: fill all of them. If the pool is full, it depends on the pool's QoS:
 * - RGAPS_REFUSE: RGAPS_NO_SPACE.
 * - RGAPS_DROP_OLDEST: gives up messages of all topics in the pool, what keep-last subscribers have not read, oldest first, then history; if that is
 *   not enough, RGAPS_NO_SPACE.
 * - RGAPS_WAIT: waits at most `exhaustion_timeout_ms`, then gives up the same of subscribers that read nothing meanwhile, or RGAPS_TIMED_OUT.
 *
 * Never given up are buffers, held messages, and what keep-all subscribers have not read.
 *
 * @param buffer  give it back with `rgaps_buffer_release`
 */
rgaps_status_t rgaps_pool_allocate(const rgaps_pool_t *pool,
                                   uint64_t bytes,
                                   rgaps_buffer_t **buffer);

/**
 * The memory in which the CPU fills a buffer: the block itself, or, if the CPU cannot map it, host memory of zeros that freezing copies over the
 * whole block; so call it only if the CPU fills the buffer. Valid until the buffer is frozen or released. A frozen buffer is refused.
 *
 * @param bytes  may be NULL
 */
rgaps_status_t rgaps_buffer_data(const rgaps_buffer_t *buffer,
                                 void **data,
                                 uint64_t *bytes);

/**
 * The device memory of a buffer. Until it is frozen, kernels and copies fill it there; their work must be in the stream that the buffer is frozen
 * on. Then they may only read it. Valid until the buffer is frozen or released: ask again after freezing. On the host backend a pointer for the CPU.
 */
rgaps_status_t rgaps_buffer_device_pointer(const rgaps_buffer_t *buffer,
                                           void **pointer);

/**
 * Ends the filling of a buffer: from now on it can be published, and no longer changed. On a GPU in stream order: the work that the stream has so
 * far fills it, and `rgaps_publisher_publish_buffer` gets the same stream. If the device fails, the buffer can only be released, and its bytes stay
 * in use until the process ends.
 *
 * @param stream  a CUstream or cudaStream_t of the device's primary context; NULL is CUDA's default stream. Of no meaning on the host backend.
 */
rgaps_status_t rgaps_buffer_freeze(const rgaps_buffer_t *buffer,
                                   void *stream);

/**
 * Publishes a frozen buffer with a publisher of its pool, without a copy. It may be published again, on this topic and on others. A buffer that is
 * not frozen, of another pool or of another length than `meta` describes is RGAPS_INVALID_ARGUMENT.
 *
 * @param meta    describes as many bytes as the buffer has
 * @param stream  the stream of `rgaps_buffer_freeze`, or one that waits for it; subscribers get the message after the work that it has so far
 * @param handle  names the message; may be NULL
 */
rgaps_status_t rgaps_publisher_publish_buffer(const rgaps_publisher_t *publisher,
                                              const rgaps_meta_t *meta,
                                              const rgaps_buffer_t *buffer,
                                              void *stream,
                                              rgaps_message_handle_t *handle);

/**
 * Gives a buffer back. Messages that have it stay until subscribers release them. Device work that reads or writes it must be complete, except that
 * of a stream on which it was published. NULL is not an error.
 */
void rgaps_buffer_release(rgaps_buffer_t *buffer);

/**
 * ROS 2's default QoS: reliable, volatile, depth 10. A full pool waits a second.
 *
 * ```c
 * rgaps_publisher_t *map;
 * rgaps_publisher_qos_t qos = rgaps_publisher_qos_default();
 * qos.durability = RGAPS_TRANSIENT_LOCAL;  // late joiners get the last message
 * qos.history_depth = 1;
 * check(rgaps_publisher_create(node, "map", RGAPS_KIND_IMAGE, &qos, &map));
 * ```
 */
rgaps_publisher_qos_t rgaps_publisher_qos_default(void);

/**
 * Creates a publisher, and the topic if it does not exist. The topic's type must be of this kind.
 *
 * ```c
 * rgaps_publisher_t *publisher;
 * check(rgaps_publisher_create(node, "camera/front", RGAPS_KIND_IMAGE, NULL, &publisher));
 * rgaps_publisher_destroy(publisher);
 * ```
 *
 * @param topic      a ROS name; the leading slash is optional
 * @param kind       an rgaps_kind_t
 * @param qos        NULL takes the default
 * @param publisher  the publisher; destroy it with `rgaps_publisher_destroy`
 */
rgaps_status_t rgaps_publisher_create(const rgaps_node_t *node,
                                      const char *topic,
                                      uint32_t kind,
                                      const rgaps_publisher_qos_t *qos,
                                      rgaps_publisher_t **publisher);

/**
 * Destroys a publisher. Its messages stay until subscribers release them. Its loans can still be published. NULL is not an error.
 */
void rgaps_publisher_destroy(rgaps_publisher_t *publisher);

/**
 * Loans a block of the pool for the bytes that `meta` describes. Fill it in place and publish it without a copy. If the pool is full, the
 * publisher's QoS decides what happens.
 *
 * A block that was used before still has its old bytes: fill all of it.
 *
 * ```c
 * rgaps_publisher_t *publisher;
 * rgaps_meta_t meta;
 * rgaps_loan_t *loan;
 * void *pixels;
 * uint64_t bytes;
 * check(rgaps_publisher_create(node, "camera/front", RGAPS_KIND_IMAGE, NULL, &publisher));
 * check(rgaps_meta_image(&meta, 640, 480, "mono8"));
 * check(rgaps_publisher_loan(publisher, &meta, &loan));
 * check(rgaps_loan_data(loan, &pixels, &bytes));
 * memset(pixels, 128, bytes);  // in place: subscribers read this memory
 * check(rgaps_loan_publish(loan, NULL, NULL));
 * ```
 *
 * @param loan  end it with `rgaps_loan_publish` or `rgaps_loan_discard`
 */
rgaps_status_t rgaps_publisher_loan(const rgaps_publisher_t *publisher,
                                    const rgaps_meta_t *meta,
                                    rgaps_loan_t **loan);

/**
 * Publishes a copy of the caller's device memory: one copy on the device into the pool, after the work that the stream has so far, whatever the
 * number of subscribers. The call does not wait for the device.
 *
 * ```c
 * rgaps_publisher_t *publisher;
 * rgaps_meta_t meta;
 * const float values[4] = {1, 2, 3, 4};  // on a GPU: a device pointer
 * const int64_t shape[] = {2, 2};
 * check(rgaps_publisher_create(node, "activations", RGAPS_KIND_TENSOR, NULL, &publisher));
 * check(rgaps_meta_tensor(&meta, RGAPS_FLOAT, 32, 2, shape));
 * check(rgaps_publisher_push_on(publisher, &meta, values, sizeof values, NULL, NULL));
 * ```
 *
 * @param meta     describes `bytes` bytes
 * @param data     a pointer of the node's device; a plain pointer on the host backend. Do not free or change the memory before the stream has made
 *                 the copy; on the host backend, before the call returns.
 * @param stream   a CUstream or cudaStream_t of the device's primary context; NULL is CUDA's default stream. Of no meaning on the host
 *                 backend.
 * @param handle   names the message; may be NULL
 */
rgaps_status_t rgaps_publisher_push_on(const rgaps_publisher_t *publisher,
                                       const rgaps_meta_t *meta,
                                       const void *data,
                                       uint64_t bytes,
                                       void *stream,
                                       rgaps_message_handle_t *handle);

/**
 * Publishes a copy of host memory, whatever the node's device: one copy into the pool, complete when the call returns.
 *
 * ```c
 * rgaps_publisher_t *publisher;
 * rgaps_meta_t meta;
 * rgaps_message_handle_t handle;
 * check(rgaps_publisher_create(node, "raw", RGAPS_KIND_BYTES, NULL, &publisher));
 * check(rgaps_meta_bytes(&meta, 5));
 * check(rgaps_publisher_push_host(publisher, &meta, "hello", 5, &handle));
 * assert(handle.sequence == 1 && handle.payload_bytes == 5);
 * ```
 *
 * @param meta     describes `bytes` bytes
 * @param handle   names the message; may be NULL
 */
rgaps_status_t rgaps_publisher_push_host(const rgaps_publisher_t *publisher,
                                         const rgaps_meta_t *meta,
                                         const void *data,
                                         uint64_t bytes,
                                         rgaps_message_handle_t *handle);

/**
 * The number of subscribers on this host, plus one for each remote host that subscribes. 0 if the handle is invalid.
 *
 * ```c
 * rgaps_publisher_t *publisher;
 * check(rgaps_publisher_create(node, "raw", RGAPS_KIND_BYTES, NULL, &publisher));
 * if (rgaps_publisher_subscriber_count(publisher) == 0) puts("nobody reads this topic");
 * ```
 */
uint64_t rgaps_publisher_subscriber_count(const rgaps_publisher_t *publisher);

/**
 * The counters of a publisher and its pool.
 *
 * ```c
 * rgaps_publisher_t *publisher;
 * rgaps_publisher_statistics_t statistics;
 * check(rgaps_publisher_create(node, "raw", RGAPS_KIND_BYTES, NULL, &publisher));
 * check(rgaps_publisher_statistics(publisher, &statistics));
 * printf("%llu of %llu B in use\n", (unsigned long long)statistics.used_bytes, (unsigned long long)statistics.pool_bytes);
 * ```
 */
rgaps_status_t rgaps_publisher_statistics(const rgaps_publisher_t *publisher,
                                          rgaps_publisher_statistics_t *statistics);

/**
 * The memory in which the CPU fills a loan: the block itself, or, on a GPU, host memory that publishing copies into the block. Valid until the loan
 * is published or discarded.
 *
 * @param bytes  may be NULL
 */
rgaps_status_t rgaps_loan_data(const rgaps_loan_t *loan,
                               void **data,
                               uint64_t *bytes);

/**
 * The device memory in which a kernel or a copy fills a loan. Work that writes there must be in the stream that the loan is published on. Valid
 * until the loan is published or discarded. On the host backend the same as `rgaps_loan_data`.
 *
 * ```c
 * rgaps_publisher_t *publisher;
 * rgaps_meta_t meta;
 * rgaps_loan_t *loan;
 * void *pointer;
 * check(rgaps_publisher_create(node, "raw", RGAPS_KIND_BYTES, NULL, &publisher));
 * check(rgaps_meta_bytes(&meta, 64));
 * check(rgaps_publisher_loan(publisher, &meta, &loan));
 * check(rgaps_loan_device_pointer(loan, &pointer));
 * // here a kernel that fills `pointer` starts on a stream; that stream is the second argument
 * check(rgaps_loan_publish(loan, NULL, NULL));
 * ```
 */
rgaps_status_t rgaps_loan_device_pointer(const rgaps_loan_t *loan,
                                         void **pointer);

/**
 * Replaces a loan's metadata before publishing. The new one must describe the same number of bytes.
 *
 * ```c
 * rgaps_publisher_t *publisher;
 * rgaps_meta_t meta;
 * rgaps_loan_t *loan;
 * check(rgaps_publisher_create(node, "camera/front", RGAPS_KIND_IMAGE, NULL, &publisher));
 * check(rgaps_meta_image(&meta, 640, 480, "mono8"));
 * check(rgaps_publisher_loan(publisher, &meta, &loan));
 * check(rgaps_meta_set_header(&meta, rgaps_now(), "camera_front"));  // the exposure is over
 * check(rgaps_loan_set_meta(loan, &meta));
 * check(rgaps_loan_discard(loan));
 * ```
 */
rgaps_status_t rgaps_loan_set_meta(const rgaps_loan_t *loan, const rgaps_meta_t *meta);

/**
 * A loan as a DLPack tensor for an array library to fill. Delete it with its deleter. It keeps the memory mapped, not the loan: do not write to it
 * after the loan is published or discarded.
 *
 * @param field   a field of a cloud's points; NULL for the whole payload
 * @param tensor  a DLManagedTensorVersioned of dlpack.h
 */
rgaps_status_t rgaps_loan_dlpack(const rgaps_loan_t *loan,
                                 const char *field,
                                 struct DLManagedTensorVersioned **tensor);

/**
 * Publishes a loan without a copy. On a GPU in stream order: the work that the stream has so far fills the block, and the call does not wait for
 * it. The handle is released even if the call fails.
 *
 * ```c
 * rgaps_publisher_t *publisher;
 * rgaps_meta_t meta;
 * rgaps_loan_t *loan;
 * void *data;
 * rgaps_message_handle_t handle;
 * check(rgaps_publisher_create(node, "raw", RGAPS_KIND_BYTES, NULL, &publisher));
 * check(rgaps_meta_bytes(&meta, 5));
 * check(rgaps_publisher_loan(publisher, &meta, &loan));
 * check(rgaps_loan_data(loan, &data, NULL));
 * memcpy(data, "hello", 5);
 * check(rgaps_loan_publish(loan, NULL, &handle));  // `loan` ends here
 * assert(handle.sequence == 1);
 * ```
 *
 * @param stream   a CUstream or cudaStream_t of the device's primary context; NULL is CUDA's default stream. Of no meaning on the host
 *                 backend.
 * @param handle   names the message; may be NULL
 */
rgaps_status_t rgaps_loan_publish(rgaps_loan_t *loan,
                                  void *stream,
                                  rgaps_message_handle_t *handle);

/**
 * Publishes several loans of one publisher, in their order, and wakes each sleeping subscriber once for all of them. Subscribers that are awake may
 * take the first messages before the last ones are published. The bytes must be complete: if work of a stream fills a block, synchronise the stream
 * first, or publish that loan with `rgaps_loan_publish`.
 *
 * If a loan is of another publisher, or cannot be filled by its device, nothing is published. Only a lost slot or a damaged topic can end the batch
 * in the middle: then the loans before that are published.
 *
 * ```c
 * rgaps_publisher_t *publisher;
 * rgaps_meta_t meta;
 * rgaps_loan_t *loans[8];
 * rgaps_message_handle_t handles[8];
 * check(rgaps_publisher_create(node, "imu", RGAPS_KIND_BYTES, NULL, &publisher));
 * check(rgaps_meta_bytes(&meta, 1));
 * for (int i = 0; i < 8; i++) {
 *   void *data;
 *   check(rgaps_publisher_loan(publisher, &meta, &loans[i]));
 *   check(rgaps_loan_data(loans[i], &data, NULL));
 *   memset(data, i, 1);
 * }
 * check(rgaps_publisher_publish_all(publisher, loans, 8, handles, NULL));  // the loans end here
 * assert(handles[7].sequence == 8 && loans[7] == NULL);
 * ```
 *
 * @param loans      `count` different loans. Whatever the status, each that has ended is set to NULL: it is published, or it is the one that failed
 *                   and was given back. The others are unchanged: publish them again, or discard them.
 * @param handles    `count` places for the names of the messages; may be NULL. Whatever the status, those of published messages are written.
 * @param published  how many loans, the first ones, are published, whatever the status; may be NULL
 */
rgaps_status_t rgaps_publisher_publish_all(const rgaps_publisher_t *publisher,
                                           rgaps_loan_t **loans,
                                           uint64_t count,
                                           rgaps_message_handle_t *handles,
                                           uint64_t *published);

/**
 * Gives a loan's block back unpublished. All device writes to it must be complete. NULL is not an error.
 */
rgaps_status_t rgaps_loan_discard(rgaps_loan_t *loan);

/**
 * The parameters of a publisher or subscription. Declare each, read-only, set its value, and pass all to `rgaps_ros_publisher_qos` or
 * `rgaps_ros_subscriber_qos`. The last one, rgaps.device, is the node's: the device for `rgaps_node_create` if it is not empty.
 *
 * @param parameters  an array of RGAPS_ROS_PARAMETERS_MAX elements
 * @param count       how many they are
 */
rgaps_status_t rgaps_ros_parameters(const rgaps_ros_endpoint_t *endpoint,
                                    rgaps_ros_parameter_t *parameters,
                                    uint64_t *count);

/**
 * What a publisher offers in the core, by its profile and the values of its parameters. The error of a wrong value names the parameter.
 */
rgaps_status_t rgaps_ros_publisher_qos(const rgaps_ros_endpoint_t *endpoint,
                                       const rgaps_ros_parameter_t *parameters,
                                       uint64_t count,
                                       rgaps_publisher_qos_t *qos);

/**
 * What a subscription requests in the core, by its profile and the values of its parameters: `slack` messages more than ROS keeps.
 *
 * @param payload_timeout_ns  how long a take by handle waits
 */
rgaps_status_t rgaps_ros_subscriber_qos(const rgaps_ros_endpoint_t *endpoint,
                                        const rgaps_ros_parameter_t *parameters,
                                        uint64_t count,
                                        rgaps_subscriber_qos_t *qos,
                                        uint64_t *payload_timeout_ns);

/**
 * Refuses a descriptor that contradicts itself: `RGAPS_WRONG_VERSION` for a handle of another layout, `RGAPS_WRONG_KIND` for one of another kind,
 * else `RGAPS_INVALID_ARGUMENT`. Only a take tells whether its message exists.
 *
 * @param handle  the descriptor's first 88 bytes
 * @param meta    its metadata, with the kind that is needed
 */
rgaps_status_t rgaps_ros_descriptor_check(const rgaps_message_handle_t *handle,
                                          const rgaps_meta_t *meta);

/**
 * Makes what takes, counts and logs the descriptors of a ROS subscription.
 *
 * @param subscriber          its core subscriber; NULL for a program that only refuses
 * @param payload_timeout_ns  how long a take by handle waits
 * @param log                 gets each refusal once for each publisher and reason, among the last 64; if more arrive, one a second. May be NULL
 * @param context             passed to `log`; kept until `rgaps_ros_payloads_destroy`, and used by calls that run then
 * @param payloads            destroy it with `rgaps_ros_payloads_destroy`
 */
rgaps_status_t rgaps_ros_payloads_create(const rgaps_subscriber_t *subscriber,
                                         uint64_t payload_timeout_ns,
                                         rgaps_ros_log_t log,
                                         void *context,
                                         rgaps_ros_payloads_t **payloads);

/**
 * Destroys it. NULL is not an error.
 */
void rgaps_ros_payloads_destroy(rgaps_ros_payloads_t *payloads);

/**
 * Takes the message of a descriptor. Returns `RGAPS_NO_MESSAGE` if there is none and that is no fault: the message is early, or the subscriber was
 * interrupted or destroyed. A descriptor or message that is wrong is a refusal, which is counted and logged; a wrong argument is none, nor is
 * `RGAPS_NO_SPACE`.
 *
 * @param handle   the descriptor's first 88 bytes; it may be wrong
 * @param meta     its metadata; it may be wrong
 * @param stream   NULL waits for the message's bytes; else the address of a stream, as for `rgaps_subscriber_take_by_handle_on`
 * @param message  release it with `rgaps_sample_release`
 */
rgaps_status_t rgaps_ros_payloads_take(const rgaps_ros_payloads_t *payloads,
                                       const rgaps_message_handle_t *handle,
                                       const rgaps_meta_t *meta,
                                       void *const *stream,
                                       rgaps_sample_t **message);

/**
 * Counts and logs a refusal that the program found itself.
 *
 * @param publisher  `publisher` of the descriptor's handle
 * @param status     the reason, by which log lines of one publisher differ
 * @param text       the line for the log
 */
rgaps_status_t rgaps_ros_payloads_refuse(const rgaps_ros_payloads_t *payloads,
                                         uint64_t publisher,
                                         uint32_t status,
                                         const char *text);

/**
 * Counters of descriptors.
 *
 * @param refused  those whose message could not be taken
 * @param early    those of messages that were published before the subscriber existed
 */
rgaps_status_t rgaps_ros_payloads_counts(const rgaps_ros_payloads_t *payloads, uint64_t *refused, uint64_t *early);

/**
 * The status of a subscription on /diagnostics.
 *
 * @param node    the ROS node's fully qualified name
 * @param status  its last status, or zeros; the new one if the call succeeds
 */
rgaps_status_t rgaps_ros_payloads_status(const rgaps_ros_payloads_t *payloads,
                                         const char *node,
                                         rgaps_ros_status_t *status);

/**
 * The status of a publisher on /diagnostics. Parameters are those of `rgaps_ros_payloads_status`.
 */
rgaps_status_t rgaps_ros_publisher_status(const rgaps_publisher_t *publisher,
                                          const char *node,
                                          rgaps_ros_status_t *status);

/**
 * The text with which middleware announces an endpoint of this process (letters, digits, '-' and ':').
 *
 * @param text      ends with a zero
 * @param capacity  at least 128
 */
rgaps_status_t rgaps_ros_buffers_metadata(char *text, uint64_t capacity);

/**
 * To be called when a subscription of this process is created, before others hear of it.
 *
 * @param gid    16 bytes
 * @param depth  how many messages its middleware keeps; 0 if that is unknown
 */
rgaps_status_t rgaps_ros_buffers_subscription_created(const uint8_t *gid, uint64_t depth);

/**
 * To be called when a subscription is discovered that may get messages of this process. RGAPS_NO_MESSAGE: it is of another version, and gets bytes.
 *
 * @param gid       16 bytes
 * @param metadata  the text that announced it
 * @param others    16 bytes for each endpoint that its publisher here knows already
 * @param count     how many they are
 */
rgaps_status_t rgaps_ros_buffers_subscription_discovered(const uint8_t *gid,
                                                         const char *metadata,
                                                         const uint8_t *others,
                                                         uint64_t count);

/**
 * To be called when a subscription of this process that takes buffers discovers a publisher. Starts a manager if none runs.
 * RGAPS_NO_MESSAGE: it is of another version, and sends bytes.
 *
 * @param metadata  the text that announced it
 */
rgaps_status_t rgaps_ros_buffers_publisher_discovered(const char *metadata);

/**
 * Counters. All zero before the first use.
 */
rgaps_status_t rgaps_ros_buffers_statistics(rgaps_ros_buffers_statistics_t *statistics);

/**
 * Allocates a buffer in the process's pool (`pool_bytes` of the configuration). Starts a manager if none runs. A full pool gives up what
 * subscriptions have not taken, oldest first; if that is not enough, RGAPS_NO_SPACE.
 *
 * @param buffer  give it back with `rgaps_ros_buffer_release`
 */
rgaps_status_t rgaps_ros_buffer_allocate(uint64_t bytes,
                                         rgaps_ros_buffer_t **buffer);

/**
 * How many bytes it has. Until a read succeeds, a received buffer has only what its descriptor says, less than 4 GiB. 0 if the handle is invalid.
 */
uint64_t rgaps_ros_buffer_bytes(const rgaps_ros_buffer_t *buffer);

/**
 * Another buffer with the same bytes: shared if they were published or received, else copied on the device.
 */
rgaps_status_t rgaps_ros_buffer_clone(const rgaps_ros_buffer_t *buffer, rgaps_ros_buffer_t **clone);

/**
 * Waits at most a second for a payload that is later than its descriptor. RGAPS_STALE if it cannot be read.
 */
rgaps_status_t rgaps_ros_buffer_await(const rgaps_ros_buffer_t *buffer);

/**
 * Begins a write by work of a stream, which follows all earlier work on the bytes. On the host backend the CPU writes. A buffer that is published
 * already, or that came from a publisher, is first copied on the device: what others read does not change. End it before the buffer is published.
 *
 * @param stream   a CUstream or cudaStream_t of the device's primary context; of no meaning on the host backend
 * @param address  on the device; valid until the end of the write
 * @param access   end it with `rgaps_ros_access_end`
 */
rgaps_status_t rgaps_ros_buffer_begin_write(const rgaps_ros_buffer_t *buffer,
                                            void *stream,
                                            void **address,
                                            rgaps_ros_access_t **access);

/**
 * Begins a read by work of a stream, which follows the work that fills the bytes. On the host backend the CPU reads. Waits like
 * `rgaps_ros_buffer_await`. The bytes stay, whatever becomes of the buffer, until the read has ended and the stream's work then is done.
 *
 * @param address  on the device, only for reading; valid until the end of the read
 * @param access   end it with `rgaps_ros_access_end`
 */
rgaps_status_t rgaps_ros_buffer_begin_read(const rgaps_ros_buffer_t *buffer,
                                           void *stream,
                                           const void **address,
                                           rgaps_ros_access_t **access);

/**
 * The device that has the bytes of a read or write, in DLPack's terms.
 */
rgaps_status_t rgaps_ros_access_device(const rgaps_ros_access_t *access, rgaps_device_t *device);

/**
 * Ends a read or write: later work on the bytes follows the work that the stream has so far. The stream may be destroyed afterwards.
 *
 * @param stream  that of the read or write
 */
rgaps_status_t rgaps_ros_access_end(rgaps_ros_access_t *access,
                                    void *stream);

/**
 * Copies host memory into all of a buffer.
 *
 * @param bytes  the buffer's
 */
rgaps_status_t rgaps_ros_buffer_copy_in(const rgaps_ros_buffer_t *buffer, const void *from, uint64_t bytes);

/**
 * Copies all of a buffer into host memory, after the work that fills it. Waits like `rgaps_ros_buffer_await`.
 *
 * @param to     initialized memory, as of a std::vector
 * @param bytes  the buffer's
 */
rgaps_status_t rgaps_ros_buffer_copy_out(const rgaps_ros_buffer_t *buffer, void *to, uint64_t bytes);

/**
 * Publishes a buffer to one subscription, in the order of its writes. RGAPS_NO_MESSAGE: the subscription takes no such buffers, or is not reached
 * (yet); it gets bytes. `rgaps_error_text` says why.
 *
 * @param gid         16 bytes: the subscription
 * @param descriptor  what the middleware carries in place of the bytes
 */
rgaps_status_t rgaps_ros_buffer_describe(const rgaps_ros_buffer_t *buffer,
                                         const uint8_t *gid,
                                         rgaps_ros_descriptor_t *descriptor);

/**
 * The buffer that a descriptor names. It does not wait for the payload, and one that cannot be read is an error of the buffer's reads.
 *
 * @param descriptor  as it came; it may be wrong
 * @param buffer      give it back with `rgaps_ros_buffer_release`
 */
rgaps_status_t rgaps_ros_buffer_receive(const rgaps_ros_descriptor_t *descriptor,
                                        rgaps_ros_buffer_t **buffer);

/**
 * Gives a buffer back. The bytes stay until the work of its reads and writes is done, and until subscriptions have released them. NULL is not an
 * error.
 */
void rgaps_ros_buffer_release(rgaps_ros_buffer_t *buffer);

/**
 * The metadata, which describes the payload.
 *
 * ```c
 * rgaps_publisher_t *publisher;
 * rgaps_subscriber_t *subscriber;
 * rgaps_sample_t *sample;
 * rgaps_meta_t meta;
 * check(rgaps_subscriber_create(node, "camera/front", RGAPS_KIND_IMAGE, NULL, &subscriber));
 * check(rgaps_publisher_create(node, "camera/front", RGAPS_KIND_IMAGE, NULL, &publisher));
 * check(rgaps_meta_image(&meta, 2, 2, "mono8"));
 * check(rgaps_publisher_push_host(publisher, &meta, "abcd", 4, NULL));
 * check(rgaps_subscriber_take(subscriber, &sample));
 * check(rgaps_sample_meta(sample, &meta));
 * assert(meta.kind == RGAPS_KIND_IMAGE && meta.as.image.width == 2);
 * check(rgaps_sample_release(sample, NULL));
 * ```
 */
rgaps_status_t rgaps_sample_meta(const rgaps_sample_t *message, rgaps_meta_t *meta);

/**
 * The message's origin, its route and the time of each stage.
 *
 * ```c
 * rgaps_publisher_t *publisher;
 * rgaps_subscriber_t *subscriber;
 * rgaps_sample_t *sample;
 * rgaps_meta_t meta;
 * rgaps_info_t info;
 * check(rgaps_subscriber_create(node, "raw", RGAPS_KIND_BYTES, NULL, &subscriber));
 * check(rgaps_publisher_create(node, "raw", RGAPS_KIND_BYTES, NULL, &publisher));
 * check(rgaps_meta_bytes(&meta, 5));
 * check(rgaps_publisher_push_host(publisher, &meta, "hello", 5, NULL));
 * check(rgaps_subscriber_take(subscriber, &sample));
 * check(rgaps_sample_info(sample, &info));
 * printf("message %llu\n", (unsigned long long)info.sequence);
 * check(rgaps_sample_release(sample, NULL));
 * ```
 */
rgaps_status_t rgaps_sample_info(const rgaps_sample_t *message, rgaps_info_t *info);

/**
 * The handle that names the message outside RGAPS.
 *
 * ```c
 * rgaps_publisher_t *publisher;
 * rgaps_subscriber_t *subscriber;
 * rgaps_sample_t *sample;
 * rgaps_meta_t meta;
 * rgaps_message_handle_t published, taken;
 * check(rgaps_subscriber_create(node, "raw", RGAPS_KIND_BYTES, NULL, &subscriber));
 * check(rgaps_publisher_create(node, "raw", RGAPS_KIND_BYTES, NULL, &publisher));
 * check(rgaps_meta_bytes(&meta, 5));
 * check(rgaps_publisher_push_host(publisher, &meta, "hello", 5, &published));
 * check(rgaps_subscriber_take(subscriber, &sample));
 * check(rgaps_sample_handle(sample, &taken));
 * assert(taken.publisher == published.publisher && taken.sequence == published.sequence);
 * check(rgaps_sample_release(sample, NULL));
 * ```
 */
rgaps_status_t rgaps_sample_handle(const rgaps_sample_t *message, rgaps_message_handle_t *handle);

/**
 * The payload for the CPU: in place if the CPU can read it there, else a copy that the first call makes and counts
 * (`rgaps_subscriber_statistics_t::copied_bytes`). Valid until the message is released. Do not write to it: the memory is mapped read-only, and
 * writing ends the process.
 *
 * @param bytes  may be NULL
 */
rgaps_status_t rgaps_sample_data(const rgaps_sample_t *message,
                                 const void **data,
                                 uint64_t *bytes);

/**
 * The payload's pointer on the device, for a kernel or a copy to read it; a plain pointer on the host backend. Valid until the message is released.
 * Work that reads it must be in the stream that the message is released on. NULL for an empty payload. Do not write to it.
 *
 * @param bytes  may be NULL
 */
rgaps_status_t rgaps_sample_device_pointer(const rgaps_sample_t *message,
                                           const void **pointer,
                                           uint64_t *bytes);

/**
 * Whether the message's bytes are written: an rgaps_readiness_t.
 *
 * ```c
 * rgaps_subscriber_t *subscriber;
 * rgaps_sample_t *sample;
 * uint32_t readiness;
 * check(rgaps_subscriber_create(node, "camera/front", RGAPS_KIND_IMAGE, NULL, &subscriber));
 * if (rgaps_subscriber_take_on(subscriber, NULL, &sample) == RGAPS_OK) {
 *   // here the program synchronizes the stream
 *   check(rgaps_sample_readiness(sample, &readiness));
 *   if (readiness != RGAPS_READINESS_READY) puts("the bytes must not be used");
 *   check(rgaps_sample_release(sample, NULL));
 * }
 * ```
 */
rgaps_status_t rgaps_sample_readiness(const rgaps_sample_t *message, uint32_t *readiness);

/**
 * A message as a DLPack tensor for an array library to read. The tensor holds the message, even after its handle is released. Its deleter releases
 * the message after the work that the stream has by then.
 *
 * @param field   a field of a cloud's points; NULL for the whole payload
 * @param stream  the library's stream, as for `rgaps_sample_release`; it must exist until the deleter has been called
 * @param tensor  a DLManagedTensorVersioned of dlpack.h, read-only
 */
rgaps_status_t rgaps_sample_dlpack(const rgaps_sample_t *message,
                                   const char *field,
                                   void *stream,
                                   struct DLManagedTensorVersioned **tensor);

/**
 * Releases a message. On a GPU, after the work that the stream has so far, without waiting for it. The handle is released even if the call fails.
 *
 * The call fails if the stream is being captured into a CUDA graph. The message is then held until the capture ends, and the stream must exist
 * until `rgaps_subscriber_statistics` no longer counts the message as held.
 *
 * @param stream  a CUstream or cudaStream_t of the device's primary context; NULL is CUDA's default stream. Of no meaning on the host
 *                backend.
 */
rgaps_status_t rgaps_sample_release(rgaps_sample_t *message,
                                    void *stream);

/**
 * Creates a publisher of raw bytes with its own node. Call it through `rgaps_publisher_init`.
 *
 * @param abi_version  RGAPS_ABI_VERSION of the header that the program was built with
 * @return             NULL on failure: see `rgaps_error_text`
 */
rgaps_publisher_t *rgaps_publisher_init_abi(uint32_t abi_version, const char *topic_name);

/**
 * Publishes one message of raw bytes.
 *
 * @param device_pointer  `message_size` bytes of device memory; of plain memory on the host backend. The copy follows the work that CUDA's default
 *                        stream has so far. Do not change the memory before that stream has made the copy.
 * @return                0, or an rgaps_status_t
 */
int32_t rgaps_publisher_push(rgaps_publisher_t *publisher,
                             size_t message_size,
                             const void *device_pointer);

/**
 * Creates a subscriber of raw bytes with its own node. Call it through `rgaps_subscriber_init`.
 *
 * @param abi_version  RGAPS_ABI_VERSION of the header that the program was built with
 * @return             NULL on failure: see `rgaps_error_text`
 */
rgaps_subscriber_t *rgaps_subscriber_init_abi(uint32_t abi_version, const char *topic_name);

/**
 * Takes one message; waits at most RGAPS_PULL_TIMEOUT_NS for it. Releases the message that this handle pulled before, after the work that CUDA's
 * default stream has by then.
 *
 * ```c
 * rgaps_subscriber_t *subscriber = rgaps_subscriber_init("raw");
 * rgaps_publisher_t *publisher = rgaps_publisher_init("raw");
 * if (rgaps_publisher_push(publisher, 5, "hello") != RGAPS_OK) puts(rgaps_error_text());
 * const char *pulled = rgaps_subscriber_pull(subscriber);
 * if (pulled == NULL) puts(rgaps_error_text());
 * rgaps_publisher_destroy(publisher);
 * rgaps_subscriber_destroy(subscriber);
 * ```
 *
 * @return  the payload on the device, a plain pointer on the host backend. Do not write to it. It is valid until the handle's next pull or destroy.
 *          NULL if no message arrived (`rgaps_error_status` is RGAPS_TIMED_OUT), if the message has no bytes (RGAPS_OK: see
 *          `rgaps_subscriber_pulled`), or on failure.
 */
void *rgaps_subscriber_pull(rgaps_subscriber_t *subscriber);

/**
 * The message that a handle pulled last, for its size and metadata; NULL if there is none. The handle owns it: do not release it.
 */
const rgaps_sample_t *rgaps_subscriber_pulled(const rgaps_subscriber_t *subscriber);

/**
 * The text of this thread's last failed call: what failed, the numbers, and what to do. Never NULL; empty if no call has failed. Valid until the
 * thread's next failed call.
 *
 * ```c
 * rgaps_publisher_t *publisher;
 * rgaps_status_t status = rgaps_publisher_create(node, "1raw", RGAPS_KIND_BYTES, NULL, &publisher);
 * assert(status == RGAPS_INVALID_ARGUMENT);
 * fprintf(stderr, "%s: %s\n", rgaps_status_name(status), rgaps_error_text());  // a name does not begin with a digit
 * ```
 */
const char *rgaps_error_text(void);

/**
 * The status of this thread's last failed call, for calls that do not return a status. `RGAPS_OK` if no call has failed.
 */
rgaps_status_t rgaps_error_status(void);

/**
 * The name of a status, such as "RGAPS_NO_SPACE"; "unknown" for other numbers.
 */
const char *rgaps_status_name(int32_t status);

/**
 * ROS 2's default QoS: reliable, volatile, keep-last 10.
 *
 * ```c
 * rgaps_subscriber_t *viewer;
 * rgaps_subscriber_qos_t qos = rgaps_subscriber_qos_default();
 * qos.depth = 1;  // only the newest message
 * check(rgaps_subscriber_create(node, "camera/front", RGAPS_KIND_IMAGE, &qos, &viewer));
 * ```
 */
rgaps_subscriber_qos_t rgaps_subscriber_qos_default(void);

/**
 * Creates a subscriber, and the topic if it does not exist. The topic's type must be of this kind. The subscriber gets every message that is
 * published after this call returns.
 *
 * ```c
 * rgaps_subscriber_t *subscriber;
 * check(rgaps_subscriber_create(node, "camera/front", RGAPS_KIND_IMAGE, NULL, &subscriber));
 * rgaps_subscriber_destroy(subscriber);
 * ```
 *
 * @param topic       a ROS name; the leading slash is optional
 * @param kind        an rgaps_kind_t
 * @param qos         NULL takes the default
 * @param subscriber  the subscriber; destroy it with `rgaps_subscriber_destroy`
 */
rgaps_status_t rgaps_subscriber_create(const rgaps_node_t *node,
                                       const char *topic,
                                       uint32_t kind,
                                       const rgaps_subscriber_qos_t *qos,
                                       rgaps_subscriber_t **subscriber);

/**
 * Destroys a subscriber. Waits and takes by handle in other threads return `RGAPS_INVALID_HANDLE`. Taken messages stay valid until they are
 * released, except the last one of `rgaps_subscriber_pull`. NULL is not an error.
 */
void rgaps_subscriber_destroy(rgaps_subscriber_t *subscriber);

/**
 * Ends the subscriber's waits and takes by handle in other threads, with `RGAPS_TIMED_OUT`. Later calls do not wait, but take messages that are
 * ready. For a program that shuts down.
 *
 * ```c
 * rgaps_subscriber_t *subscriber;
 * rgaps_sample_t *sample;
 * check(rgaps_subscriber_create(node, "raw", RGAPS_KIND_BYTES, NULL, &subscriber));
 * check(rgaps_subscriber_interrupt(subscriber));  // as another thread does
 * rgaps_status_t status = rgaps_subscriber_wait(subscriber, UINT64_MAX, &sample);
 * assert(status == RGAPS_TIMED_OUT);
 * ```
 */
rgaps_status_t rgaps_subscriber_interrupt(const rgaps_subscriber_t *subscriber);

/**
 * Takes the next message if one is ready; else returns `RGAPS_NO_MESSAGE`.
 *
 * ```c
 * rgaps_publisher_t *publisher;
 * rgaps_subscriber_t *subscriber;
 * rgaps_sample_t *sample;
 * rgaps_meta_t meta;
 * const void *data;
 * uint64_t bytes;
 * check(rgaps_subscriber_create(node, "raw", RGAPS_KIND_BYTES, NULL, &subscriber));
 * check(rgaps_publisher_create(node, "raw", RGAPS_KIND_BYTES, NULL, &publisher));
 * check(rgaps_meta_bytes(&meta, 5));
 * check(rgaps_publisher_push_host(publisher, &meta, "hello", 5, NULL));
 * while (rgaps_subscriber_take(subscriber, &sample) == RGAPS_OK) {
 *   check(rgaps_sample_data(sample, &data, &bytes));
 *   assert(bytes == 5 && memcmp(data, "hello", 5) == 0);  // read in place
 *   check(rgaps_sample_release(sample, NULL));
 * }
 * ```
 *
 * @param message  release it with `rgaps_sample_release`
 */
rgaps_status_t rgaps_subscriber_take(const rgaps_subscriber_t *subscriber, rgaps_sample_t **message);

/**
 * Takes the next message in stream order: its bytes may not be written yet, and later work of the stream waits for them. The call does not wait for
 * the device. After synchronising the stream, `rgaps_sample_readiness` tells whether the bytes were written.
 *
 * ```c
 * rgaps_subscriber_t *subscriber;
 * rgaps_sample_t *sample;
 * const void *pointer;
 * check(rgaps_subscriber_create(node, "camera/front", RGAPS_KIND_IMAGE, NULL, &subscriber));
 * if (rgaps_subscriber_take_on(subscriber, NULL, &sample) == RGAPS_OK) {
 *   check(rgaps_sample_device_pointer(sample, &pointer, NULL));
 *   // here a kernel that reads `pointer` starts on the same stream
 *   check(rgaps_sample_release(sample, NULL));  // after the kernel
 * }
 * ```
 *
 * @param stream   a CUstream or cudaStream_t of the device's primary context; NULL is CUDA's default stream. On the host backend this is
 *                 `rgaps_subscriber_take`.
 * @param message  release it with `rgaps_sample_release`
 */
rgaps_status_t rgaps_subscriber_take_on(const rgaps_subscriber_t *subscriber,
                                        void *stream,
                                        rgaps_sample_t **message);

/**
 * Takes all messages that are ready, oldest first, at most `capacity`. An error ends the batch and is returned only if the batch is empty. An error
 * that lasts (RGAPS_TOO_MANY_HELD while the batch is held) is therefore returned by the next call.
 *
 * ```c
 * rgaps_subscriber_t *subscriber;
 * rgaps_sample_t *batch[16];
 * uint64_t count;
 * check(rgaps_subscriber_create(node, "raw", RGAPS_KIND_BYTES, NULL, &subscriber));
 * check(rgaps_subscriber_take_all(subscriber, batch, 16, &count));
 * for (uint64_t i = 0; i < count; i++) check(rgaps_sample_release(batch[i], NULL));
 * ```
 *
 * @param messages  an array of `capacity` elements; release each message with `rgaps_sample_release`
 * @param count     the number of messages taken; 0 if the call fails
 */
rgaps_status_t rgaps_subscriber_take_all(const rgaps_subscriber_t *subscriber,
                                         rgaps_sample_t **messages,
                                         uint64_t capacity,
                                         uint64_t *count);

/**
 * Waits for the next message; returns `RGAPS_TIMED_OUT` if none arrives in time. Other threads may use the subscriber meanwhile.
 *
 * ```c
 * rgaps_subscriber_t *subscriber;
 * rgaps_sample_t *sample;
 * check(rgaps_subscriber_create(node, "raw", RGAPS_KIND_BYTES, NULL, &subscriber));
 * switch (rgaps_subscriber_wait(subscriber, 1000000, &sample)) {
 *   case RGAPS_OK: check(rgaps_sample_release(sample, NULL)); break;
 *   case RGAPS_TIMED_OUT: puts("no message within 1 ms"); break;
 *   default: puts(rgaps_error_text());
 * }
 * ```
 *
 * @param timeout_ns  maximum wait in ns; UINT64_MAX waits without limit
 * @param message     release it with `rgaps_sample_release`
 */
rgaps_status_t rgaps_subscriber_wait(const rgaps_subscriber_t *subscriber,
                                     uint64_t timeout_ns,
                                     rgaps_sample_t **message);

/**
 * Takes the message that a handle names, in any order, and waits at most `timeout_ns` for it to arrive from another host. Earlier messages stay
 * untaken, for later takes of any kind. A keep-all subscriber keeps the newest 64 of them, and of each publisher at most half as many as it may have
 * messages; older ones are lost and counted.
 *
 * Returns `RGAPS_STALE` if this subscriber neither has nor will get the message: it is of an earlier run (a replayed handle), released, or taken
 * already. Returns `RGAPS_EARLY` if the message was published before the subscriber joined: for as many handles of a publisher as the subscriber's
 * depth (64 at most), then `RGAPS_STALE`.
 *
 * @param handle      a handle from a publisher or another subscriber of this topic; it may be wrong
 * @param timeout_ns  maximum wait in ns; UINT64_MAX waits without limit
 * @param stream      as for `rgaps_subscriber_take_on`: NULL with a node on a GPU is CUDA's default stream
 * @param message     release it with `rgaps_sample_release`
 */
rgaps_status_t rgaps_subscriber_take_by_handle_on(const rgaps_subscriber_t *subscriber,
                                                  const rgaps_message_handle_t *handle,
                                                  uint64_t timeout_ns,
                                                  void *stream,
                                                  rgaps_sample_t **message);

/**
 * Like `rgaps_subscriber_take_by_handle_on`, but without a stream: waits for the message's bytes, too.
 *
 * ```c
 * rgaps_publisher_t *publisher;
 * rgaps_subscriber_t *subscriber;
 * rgaps_sample_t *sample;
 * rgaps_meta_t meta;
 * rgaps_message_handle_t handle;  // 88 bytes that other middleware may carry
 * check(rgaps_subscriber_create(node, "raw", RGAPS_KIND_BYTES, NULL, &subscriber));
 * check(rgaps_publisher_create(node, "raw", RGAPS_KIND_BYTES, NULL, &publisher));
 * check(rgaps_meta_bytes(&meta, 5));
 * check(rgaps_publisher_push_host(publisher, &meta, "hello", 5, &handle));
 * check(rgaps_subscriber_take_by_handle(subscriber, &handle, 1000000000, &sample));
 * check(rgaps_sample_release(sample, NULL));
 * ```
 */
rgaps_status_t rgaps_subscriber_take_by_handle(const rgaps_subscriber_t *subscriber,
                                               const rgaps_message_handle_t *handle,
                                               uint64_t timeout_ns,
                                               rgaps_sample_t **message);

/**
 * Promises that from now on takes by handle follow each publisher's order of publication. Taking a message then releases that publisher's earlier
 * untaken messages. They count as lost, except those before the first take by handle of that publisher.
 *
 * ```c
 * rgaps_subscriber_t *subscriber;
 * check(rgaps_subscriber_create(node, "raw", RGAPS_KIND_BYTES, NULL, &subscriber));
 * check(rgaps_subscriber_expect_handles_in_order(subscriber));  // one thread will take all handles
 * ```
 */
rgaps_status_t rgaps_subscriber_expect_handles_in_order(const rgaps_subscriber_t *subscriber);

/**
 * A file descriptor that is readable while a message may be ready, for epoll, poll and select. Do not read or close it. Take until there is no
 * message, which resets it. The subscriber owns it and closes it.
 *
 * ```c
 * rgaps_subscriber_t *subscriber;
 * rgaps_sample_t *sample;
 * struct pollfd watched = {.events = POLLIN};
 * check(rgaps_subscriber_create(node, "raw", RGAPS_KIND_BYTES, NULL, &subscriber));
 * check(rgaps_subscriber_event_fd(subscriber, &watched.fd));
 * if (poll(&watched, 1, 1) > 0)
 *   while (rgaps_subscriber_take(subscriber, &sample) == RGAPS_OK) check(rgaps_sample_release(sample, NULL));
 * ```
 */
rgaps_status_t rgaps_subscriber_event_fd(const rgaps_subscriber_t *subscriber,
                                         int32_t *fd);

/**
 * The counters of a subscriber.
 *
 * ```c
 * rgaps_subscriber_t *subscriber;
 * rgaps_subscriber_statistics_t statistics;
 * check(rgaps_subscriber_create(node, "raw", RGAPS_KIND_BYTES, NULL, &subscriber));
 * check(rgaps_subscriber_statistics(subscriber, &statistics));
 * if (statistics.lost > 0) puts("too slow for this topic");
 * ```
 */
rgaps_status_t rgaps_subscriber_statistics(const rgaps_subscriber_t *subscriber,
                                           rgaps_subscriber_statistics_t *statistics);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#ifdef __cplusplus
extern "C" {
#endif

/* These pass the header's ABI version to the library. */

/**
 * Creates a node. See rgaps_node_create_abi.
 *
 * ```c
 * rgaps_node_t *driver;
 * rgaps_node_options_t options = rgaps_node_options_default();
 * options.name = "camera_driver";
 * options.domain = 7;
 * check(rgaps_node_create(&options, &driver));
 * rgaps_node_destroy(driver);
 * ```
 */
static inline rgaps_status_t rgaps_node_create(const rgaps_node_options_t *options, rgaps_node_t **node) {
  return rgaps_node_create_abi(RGAPS_ABI_VERSION, options, node);
}

/** Creates a publisher of raw bytes with its own node. See rgaps_publisher_init_abi. */
static inline rgaps_publisher_t *rgaps_publisher_init(const char *topic_name) {
  return rgaps_publisher_init_abi(RGAPS_ABI_VERSION, topic_name);
}

/** Creates a subscriber of raw bytes with its own node. See rgaps_subscriber_init_abi. */
static inline rgaps_subscriber_t *rgaps_subscriber_init(const char *topic_name) {
  return rgaps_subscriber_init_abi(RGAPS_ABI_VERSION, topic_name);
}

#ifdef __cplusplus
}
#endif

#endif /* RGAPS_H */
