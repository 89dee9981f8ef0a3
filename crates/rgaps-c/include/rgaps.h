/**
 * @file
 * RGAPS: GPU-resident images, point clouds and tensors between the processes of a robot and between its computers.
 *
 * Made by cbindgen of crates/rgaps-c/src; do not edit.
 *
 * - **Handles**: rgaps_node_t and the like are handles, not pointers to memory: NULL, released and wrong ones are errors, never crashes.
 * - **Results**: RGAPS_OK, or a status whose reason rgaps_error_text() tells. Outputs are written on RGAPS_OK only.
 * - **Threads**: nodes, publishers and subscribers may be used by any thread at once; a loan or a message by one thread at a time.
 * - **fork**: the child cannot use what its parent made (RGAPS_FORKED); it makes a node of its own.
 * - **Devices**: payloads are where rgaps_node_device says: on a GPU, or in the host's memory. A call that takes a stream is in its order.
 */

#ifndef RGAPS_H
#define RGAPS_H

#include <stddef.h>
#include <stdint.h>

/* A tensor of dlpack.h, which is needed only by who looks into it. */
struct DLManagedTensorVersioned;


/**
 * The version of this ABI. It changes when a program built against an older rgaps.h cannot work with this library.
 */
#define RGAPS_ABI_VERSION 2

/**
 * ns that a pull waits for a message.
 */
#define RGAPS_PULL_TIMEOUT_NS 1000000000

/**
 * What a call returns. Everything but `RGAPS_OK` leaves its outputs as they were; `rgaps_error_text` says the rest, for all but
 * `RGAPS_NO_MESSAGE`.
 */
typedef enum {
  /**
   * Done.
   */
  RGAPS_OK = 0,
  /**
   * Nothing is wrong, and there is no message now.
   */
  RGAPS_NO_MESSAGE = 1,
  /**
   * The time-out came first.
   */
  RGAPS_TIMED_OUT = 2,
  /**
   * An argument is NULL where it must not be, contradicts itself, or is out of its range.
   */
  RGAPS_INVALID_ARGUMENT = 3,
  /**
   * A handle is NULL, was released, is of another kind of object, or never was one.
   */
  RGAPS_INVALID_HANDLE = 4,
  /**
   * The program was built for another version of the ABI than the library's.
   */
  RGAPS_WRONG_VERSION = 5,
  /**
   * Message, metadata, topic or question are of different kinds.
   */
  RGAPS_WRONG_KIND = 6,
  /**
   * The pool or the message table is full; messages must be released, or the pool be larger.
   */
  RGAPS_NO_SPACE = 7,
  /**
   * The manager, rgapsd, is not there, could not be started or does not answer.
   */
  RGAPS_NO_MANAGER = 8,
  /**
   * The manager refused: no free place in the topic, no such topic, no memory.
   */
  RGAPS_REFUSED = 9,
  /**
   * The device refused or failed.
   */
  RGAPS_DEVICE_ERROR = 10,
  /**
   * The message's bytes never came: its producer died, or its device failed.
   */
  RGAPS_POISONED = 11,
  /**
   * This process was forked from the one that made the object.
   */
  RGAPS_FORKED = 12,
  /**
   * What another process wrote makes no sense. It was not followed.
   */
  RGAPS_CORRUPT = 13,
  /**
   * The kernel refused.
   */
  RGAPS_SYSTEM_ERROR = 14,
  /**
   * A defect of the library. The call was given up.
   */
  RGAPS_INTERNAL_ERROR = 15,
  /**
   * A message's handle names nothing that this subscriber has or will have.
   */
  RGAPS_STALE = 16,
  /**
   * A message's handle names one that was published before the subscriber was there.
   */
  RGAPS_EARLY = 17,
  /**
   * The publisher or subscriber has lost its place in the topic: the manager that followed one that died did not take it back. Make it anew.
   */
  RGAPS_CUT_OFF = 18,
  /**
   * The subscriber holds half of what a publisher may have. Nothing is lost: release some messages, and take again.
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
   * Pictures.
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
 * Whether what was published must arrive.
 */
typedef enum {
  /**
   * A link that is cut loses what was on its way.
   */
  RGAPS_BEST_EFFORT = 0,
  /**
   * A link that is cut sends again what history still has.
   */
  RGAPS_RELIABLE = 1,
} rgaps_reliability_t;

/**
 * Whether late joiners get what was published before.
 */
typedef enum {
  /**
   * No.
   */
  RGAPS_VOLATILE = 0,
  /**
   * Yes, the publisher's last `history_depth` messages.
   */
  RGAPS_TRANSIENT_LOCAL = 1,
} rgaps_durability_t;

/**
 * What a publisher does when its pool is full.
 */
typedef enum {
  /**
   * Waits until subscribers release messages, at most `exhaustion_timeout_ms`; then `RGAPS_TIMED_OUT`.
   */
  RGAPS_WAIT = 0,
  /**
   * Takes the oldest unread messages from keep-last subscribers.
   */
  RGAPS_DROP_OLDEST = 1,
  /**
   * Says `RGAPS_NO_SPACE`.
   */
  RGAPS_REFUSE = 2,
} rgaps_exhaustion_t;

/**
 * Whether a message's bytes are there.
 */
typedef enum {
  /**
   * Not yet: the device is still to bring them. Only for messages of `rgaps_subscriber_take_on`.
   */
  RGAPS_PENDING = 0,
  /**
   * Yes.
   */
  RGAPS_READY = 1,
  /**
   * Never: their producer died, or its device failed.
   */
  RGAPS_NEVER_READY = 2,
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
 * Kind of the elements of a tensor, with the codes of DLPack's DLDataTypeCode; their size is given in bits.
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
   * Truth values, of 8 bits.
   */
  RGAPS_BOOL = 6,
} rgaps_type_code_t;

/**
 * A block of a publisher's pool that is being filled. Used by one thread at a time.
 */
typedef struct rgaps_loan_t rgaps_loan_t;

/**
 * A process's part in RGAPS: its connection to the host's manager, and the factory of publishers and subscribers. Usable from any thread;
 * not after fork.
 */
typedef struct rgaps_node_t rgaps_node_t;

/**
 * Publishes messages of one kind on one topic. Usable from any thread.
 */
typedef struct rgaps_publisher_t rgaps_publisher_t;

/**
 * A message that is being read, in the memory where its publisher (or, from another host, the manager) put it. It stays as it is until it is
 * released, however far the publisher runs ahead, and outlives its subscriber.
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
   * Seconds since 1970-01-01 UTC, as builtin_interfaces/Time.
   */
  int32_t sec;
  /**
   * Nanoseconds of that second.
   */
  uint32_t nanosec;
  /**
   * Coordinate frame (of a tensor, perhaps its name): UTF-8, filled up with zeros; all 64 bytes may be used.
   */
  char frame_id[64];
  /**
   * Free for the application.
   */
  uint8_t user[32];
} rgaps_header_t;

/**
 * A payload of raw bytes.
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
 * What the payload of an image message is, as sensor_msgs/Image. Made by `rgaps_meta_image`.
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
   * Pixel format, by its code: `rgaps_encoding_code`, `rgaps_encoding_name`.
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
 * One field of every point. Made by `rgaps_meta_add_field`.
 */
typedef struct {
  /**
   * UTF-8, filled up with zeros; all 32 bytes may be used.
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
 * What the payload of a point cloud message is, as sensor_msgs/PointCloud2. Made by `rgaps_meta_point_cloud`.
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
   * Rows; 1 for a cloud without order.
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
   * Fields, at most 16.
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
   * Those past `field_count` are zero.
   */
  rgaps_point_field_t fields[16];
} rgaps_point_cloud_t;

/**
 * What the payload of a tensor message is, as DLPack's DLTensor. Made by `rgaps_meta_tensor`.
 */
typedef struct {
  /**
   * Stamp, frame or name, the application's bytes.
   */
  rgaps_header_t header;
  /**
   * Dimensions, at most 8.
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
   * First byte of element (0, 0, ...) in the payload.
   */
  uint64_t byte_offset;
} rgaps_tensor_t;

/**
 * The metadata of one kind.
 */
typedef union {
  /**
   * What all kinds begin with.
   */
  rgaps_header_t header;
  /**
   * Of raw bytes.
   */
  rgaps_bytes_t bytes;
  /**
   * Of a picture.
   */
  rgaps_image_t image;
  /**
   * Of a point cloud.
   */
  rgaps_point_cloud_t point_cloud;
  /**
   * Of a tensor.
   */
  rgaps_tensor_t tensor;
} rgaps_any_meta_t;

/**
 * Metadata, and of which kind it is.
 */
typedef struct {
  /**
   * An `rgaps_kind_t`: which member of `as` there is.
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
   * For people; NULL takes the program's name.
   */
  const char *name;
  /**
   * The directory of the manager to use; NULL takes RGAPS_RUNTIME_DIR, else this user's.
   */
  const char *runtime_dir;
  /**
   * The GPU whose streams work on the host's pools, as "cuda:0"; NULL takes the one that they lie on.
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
   * Not 0: it works for a node of ROS 2. If it starts the manager and nothing is said of the network, other hosts are let in, as the RMW
   * does it.
   */
  uint32_t ros_node;
} rgaps_node_options_t;

/**
 * Where memory is, in DLPack's terms.
 */
typedef struct {
  /**
   * A DLDeviceType: 1 memory of the host, 2 an NVIDIA GPU.
   */
  int32_t device_type;
  /**
   * Its number as this process counts them; 0 for the host.
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
 * What a publisher offers. Start from `rgaps_publisher_qos_default`.
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
   * How many last messages are kept for late joiners, and sent again by a link that was cut.
   */
  uint32_t history_depth;
  /**
   * An `rgaps_exhaustion_t`.
   */
  uint32_t exhaustion;
  /**
   * Milliseconds that a full pool is waited for.
   */
  uint64_t exhaustion_timeout_ms;
  /**
   * Bytes of the publisher's pool; 0 takes the configuration's.
   */
  uint64_t pool_bytes;
  /**
   * 0: links wait for no credit, and a slow receiver's oldest messages are overwritten and counted. Else they wait.
   */
  uint32_t flow_control;
  /**
   * 0.
   */
  uint32_t reserved;
} rgaps_publisher_qos_t;

/**
 * Names a message outside RGAPS: the bytes of rgaps_msgs/GpuHandle. It holds nothing; `rgaps_subscriber_take_by_handle` says what it still names.
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
   * ns since 1970 when the publisher's host came to life.
   */
  uint64_t host_epoch;
  /**
   * Identity of the publisher.
   */
  uint64_t publisher;
  /**
   * The publisher's count of its messages, from 1.
   */
  uint64_t sequence;
  /**
   * Place in the order of the topic on the host that wrote this.
   */
  uint64_t position;
  /**
   * Bytes of the payload.
   */
  uint64_t payload_bytes;
  /**
   * Entry of that host's message table.
   */
  uint32_t slot;
  /**
   * Which of the entry's lives.
   */
  uint32_t generation;
  /**
   * Of this layout.
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
   * Their bytes.
   */
  uint64_t published_bytes;
  /**
   * Loans that were refused or timed out.
   */
  uint64_t refused;
  /**
   * Bytes of the pool.
   */
  uint64_t pool_bytes;
  /**
   * Bytes of it in use.
   */
  uint64_t used_bytes;
  /**
   * Messages that are still read or kept.
   */
  uint64_t outstanding;
} rgaps_publisher_statistics_t;

/**
 * Where a message came from, the path that it took, and when it passed each stage.
 */
typedef struct {
  /**
   * Place in the order of the topic on this host.
   */
  uint64_t position;
  /**
   * Identity of the publisher.
   */
  uint64_t publisher;
  /**
   * The publisher's count of its messages, from 1.
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
   * ns since 1970 when it was published, on the publisher's host; as all that follow, 0 where there was no such stage.
   */
  uint64_t published_ns;
  /**
   * When the publisher's manager took it.
   */
  uint64_t staged_ns;
  /**
   * When its first byte was handed to the link.
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
   * The memory that it lies in: device of the pool's file. The same for every subscriber of a host, as the two that follow.
   */
  uint64_t pool_device;
  /**
   * Inode of the pool's file.
   */
  uint64_t pool_inode;
  /**
   * First byte of the payload in the pool.
   */
  uint64_t pool_offset;
  /**
   * An `rgaps_kind_t`.
   */
  uint32_t kind;
  /**
   * How it was handed over: 0 not stated, 1 loaned, 2 pushed.
   */
  uint8_t origin;
  /**
   * How it came to this host: 0 published here, 1 over TCP, 2 over RDMA.
   */
  uint8_t route;
  /**
   * Why not by a better route: 0 there is none, 1 pushed, 2 configured so, 3 no RDMA device, 4 RDMA failed, 5 no flow control.
   */
  uint8_t why_not;
  /**
   * Copies on the device, by push.
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
 * What a subscriber requests. Start from `rgaps_subscriber_qos_default`.
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
   * How many unread messages are kept; older ones are counted as lost. 0 keeps all, and publishers wait.
   */
  uint32_t depth;
  /**
   * 0.
   */
  uint32_t reserved;
} rgaps_subscriber_qos_t;

/**
 * A subscriber's counters.
 */
typedef struct {
  /**
   * Messages taken.
   */
  uint64_t taken;
  /**
   * Messages lost: older than the depth, or needed for their space, or lost on the way from another host.
   */
  uint64_t lost;
  /**
   * Messages whose bytes never came.
   */
  uint64_t poisoned;
  /**
   * Messages held now.
   */
  uint64_t held;
  /**
   * Bytes that were copied for this subscriber alone: 0, unless it asked for a copy of device memory.
   */
  uint64_t copied_bytes;
  /**
   * Messages that were passed by because what they say of themselves contradicts itself.
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
 * Metadata of a picture whose rows follow each other without gaps. For rows with gaps, raise `as.image.step` afterwards.
 *
 * @param encoding  a name of sensor_msgs/image_encodings, such as "rgb8", "mono8", "16UC1" or "nv12"
 */
rgaps_status_t rgaps_meta_image(rgaps_meta_t *meta,
                                uint32_t width,
                                uint32_t height,
                                const char *encoding);

/**
 * Metadata of a cloud of `width` x `height` points of `point_step` bytes that follow each other without gaps; dense, little-endian. Fields
 * are added by `rgaps_meta_add_field`.
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
 * @param datatype  an rgaps_datatype_t, such as RGAPS_FLOAT32. For several elements set `count` of the field in `as.point_cloud.fields`.
 */
rgaps_status_t rgaps_meta_add_field(rgaps_meta_t *meta,
                                    const char *name,
                                    uint32_t offset,
                                    uint32_t datatype);

/**
 * Metadata of a tensor in C order: the last dimension is contiguous, nothing lies between or before the elements.
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
 * @param ns        since 1970; `rgaps_now` tells it
 * @param frame_id  at most 64 bytes; NULL leaves it empty
 */
rgaps_status_t rgaps_meta_set_header(rgaps_meta_t *meta, uint64_t ns, const char *frame_id);

/**
 * Now, in ns since 1970 on this host's clock.
 */
uint64_t rgaps_now(void);

/**
 * Bytes of payload that metadata describes; 0 if it contradicts itself, which `rgaps_error_text` then explains.
 */
uint64_t rgaps_meta_payload_bytes(const rgaps_meta_t *meta);

/**
 * The code of an encoding's name; 0 if there is none.
 */
uint32_t rgaps_encoding_code(const char *name);

/**
 * The name of an encoding's code; NULL if there is none.
 */
const char *rgaps_encoding_name(uint32_t code);

/**
 * The field of a cloud with this name.
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
 * Makes a node: connects to the host's manager, and starts one if none runs. Called through `rgaps_node_create`.
 *
 * @param abi_version  RGAPS_ABI_VERSION of the header that the program was built with
 * @param options      NULL takes the defaults
 * @param node         the node; `rgaps_node_destroy` ends it
 */
rgaps_status_t rgaps_node_create_abi(uint32_t abi_version, const rgaps_node_options_t *options, rgaps_node_t **node);

/**
 * Ends a node. Its publishers, subscribers and messages stay usable until they are destroyed. NULL is no error.
 */
void rgaps_node_destroy(rgaps_node_t *node);

/**
 * Where the payloads of this host are. Pointers to payloads are of this device; on the host backend they are plain pointers.
 */
rgaps_status_t rgaps_node_device(const rgaps_node_t *node,
                                 rgaps_device_t *device);

/**
 * The topics that this host knows of.
 *
 * @param topics    `capacity` places; as many as there are topics are filled
 * @param count     how many topics there are, perhaps more than `capacity`
 */
rgaps_status_t rgaps_node_topics(const rgaps_node_t *node, rgaps_topic_t *topics, uint64_t capacity, uint64_t *count);

/**
 * ROS 2's default QoS: reliable, volatile, depth 10. A full pool waits a second.
 */
rgaps_publisher_qos_t rgaps_publisher_qos_default(void);

/**
 * Makes a publisher. The topic is made if it does not exist; its type must be of this kind.
 *
 * @param topic      a ROS name; with or without the leading slash it is one
 * @param kind       an rgaps_kind_t
 * @param qos        NULL takes the default
 * @param publisher  the publisher; `rgaps_publisher_destroy` ends it
 */
rgaps_status_t rgaps_publisher_create(const rgaps_node_t *node,
                                      const char *topic,
                                      uint32_t kind,
                                      const rgaps_publisher_qos_t *qos,
                                      rgaps_publisher_t **publisher);

/**
 * Ends a publisher. What it has published stays until subscribers release messages. Its loans can still be published. NULL is no error.
 */
void rgaps_publisher_destroy(rgaps_publisher_t *publisher);

/**
 * A block of the pool for the bytes that `meta` describes, to be filled in place and published without a copy. What happens while the pool
 * is full is the publisher's QoS.
 *
 * A block that has been used before still holds its old bytes: fill all of it.
 *
 * @param loan  ends with `rgaps_loan_publish` or `rgaps_loan_discard`
 */
rgaps_status_t rgaps_publisher_loan(const rgaps_publisher_t *publisher,
                                    const rgaps_meta_t *meta,
                                    rgaps_loan_t **loan);

/**
 * Publishes bytes that lie on the device elsewhere: one copy on the device into the pool, behind the work given to the stream so far,
 * whatever the number of subscribers. The call does not wait for the device.
 *
 * @param meta     describes `bytes` bytes
 * @param data     a pointer of the node's device, on the host backend a plain one. It stays, and nobody writes there, until the stream has
 *                 made the copy; on the host backend, until the call returns.
 * @param stream   a CUstream or cudaStream_t of the device's primary context; NULL is CUDA's default stream. Of no meaning on the host
 *                 backend.
 * @param handle   names the message; may be NULL
 */
rgaps_status_t rgaps_publisher_push_message(const rgaps_publisher_t *publisher,
                                            const rgaps_meta_t *meta,
                                            const void *data,
                                            uint64_t bytes,
                                            void *stream,
                                            rgaps_message_handle_t *handle);

/**
 * Publishes bytes that lie in the CPU's memory, on whatever device the node works: one copy into the pool, done when the call returns.
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
 * How many subscribers the topic has on this host; each remote host that wants it counts as one. 0 if the handle is none.
 */
uint64_t rgaps_publisher_subscriber_count(const rgaps_publisher_t *publisher);

/**
 * The counters of a publisher and its pool.
 */
rgaps_status_t rgaps_publisher_statistics(const rgaps_publisher_t *publisher, rgaps_publisher_statistics_t *statistics);

/**
 * Where the CPU fills a loan: the block itself, or on a GPU memory that is copied there when the loan is published. Valid until the loan is
 * published or discarded.
 *
 * @param bytes  may be NULL
 */
rgaps_status_t rgaps_loan_data(const rgaps_loan_t *loan,
                               void **data,
                               uint64_t *bytes);

/**
 * Where the device fills a loan: a kernel, or a copy. What writes there is given to the stream that the loan is published on. Valid until
 * the loan is published or discarded. On the host backend the same as `rgaps_loan_data`.
 */
rgaps_status_t rgaps_loan_device_pointer(const rgaps_loan_t *loan,
                                         void **pointer);

/**
 * Completes a loan's metadata before it is published. It keeps describing the same number of bytes.
 */
rgaps_status_t rgaps_loan_set_meta(const rgaps_loan_t *loan, const rgaps_meta_t *meta);

/**
 * A loan as a DLPack tensor for an array library to fill. Delete it by its deleter. It keeps memory mapped, not the loan: after the loan is
 * published or discarded nobody may write there.
 *
 * @param field   of a cloud, one field of its points; NULL for the whole payload
 * @param tensor  a DLManagedTensorVersioned of dlpack.h
 */
rgaps_status_t rgaps_loan_dlpack(const rgaps_loan_t *loan,
                                 const char *field,
                                 struct DLManagedTensorVersioned **tensor);

/**
 * Publishes a loan: zero copies. On a GPU in stream order: behind the work given to the stream so far, which fills the block; the call does
 * not wait for it. The handle is released, whatever is returned.
 *
 * @param stream   a CUstream or cudaStream_t of the device's primary context; NULL is CUDA's default stream. Of no meaning on the host
 *                 backend.
 * @param handle   names the message; may be NULL
 */
rgaps_status_t rgaps_loan_publish(rgaps_loan_t *loan,
                                  void *stream,
                                  rgaps_message_handle_t *handle);

/**
 * Gives a loan's block back unpublished. What a device was writing there must be done. NULL is no error.
 */
rgaps_status_t rgaps_loan_discard(rgaps_loan_t *loan);

/**
 * What the payload is.
 */
rgaps_status_t rgaps_sample_meta(const rgaps_sample_t *message, rgaps_meta_t *meta);

/**
 * Where the message came from, the path that it took and when it passed each stage.
 */
rgaps_status_t rgaps_sample_info(const rgaps_sample_t *message, rgaps_info_t *info);

/**
 * What names the message outside RGAPS.
 */
rgaps_status_t rgaps_sample_handle(const rgaps_sample_t *message, rgaps_message_handle_t *handle);

/**
 * The payload for the CPU: in place where it can read it; from a GPU a copy, fetched at the first call and counted
 * (`rgaps_subscriber_statistics_t::copied_bytes`). Valid until the message is released. It must not be written: the memory is mapped for
 * reading, and writing there ends the process.
 *
 * @param bytes  may be NULL
 */
rgaps_status_t rgaps_sample_data(const rgaps_sample_t *message,
                                 const void **data,
                                 uint64_t *bytes);

/**
 * Where the payload lies on the device, for a kernel or a copy to read it; on the host backend a plain pointer. Valid until the message is
 * released; what reads it is given to the stream that it is released on. NULL for a payload without bytes. It must not be written.
 *
 * @param bytes  may be NULL
 */
rgaps_status_t rgaps_sample_device_pointer(const rgaps_sample_t *message,
                                           const void **pointer,
                                           uint64_t *bytes);

/**
 * Whether the message's bytes are there: an rgaps_readiness_t.
 */
rgaps_status_t rgaps_sample_readiness(const rgaps_sample_t *message, uint32_t *readiness);

/**
 * A message as a DLPack tensor for an array library to read. The tensor holds the message, whatever becomes of its handle, until its deleter
 * is called, and then releases it behind the work that the stream has got by then.
 *
 * @param field   of a cloud, one field of its points; NULL for the whole payload
 * @param stream  on which the library works, as for `rgaps_sample_release`; it must live until the deleter has been called
 * @param tensor  a DLManagedTensorVersioned of dlpack.h, read only
 */
rgaps_status_t rgaps_sample_dlpack(const rgaps_sample_t *message,
                                   const char *field,
                                   void *stream,
                                   struct DLManagedTensorVersioned **tensor);

/**
 * Lets a message go. On a GPU behind the work given to the stream so far, which reads it; the call does not wait for it. The handle is
 * released, whatever is returned.
 *
 * A stream that is being captured into a CUDA graph takes no message back, which is the error: the message is held until the capture is
 * over and `rgaps_subscriber_statistics` counts it no longer, and the stream has to live for so long.
 *
 * @param stream  a CUstream or cudaStream_t of the device's primary context; NULL is CUDA's default stream. Of no meaning on the host
 *                backend.
 */
rgaps_status_t rgaps_sample_release(rgaps_sample_t *message,
                                    void *stream);

/**
 * Attaches the calling process as a publisher of raw bytes. Called through `rgaps_publisher_init`.
 *
 * @param abi_version  RGAPS_ABI_VERSION of the header that the program was built with
 * @return             NULL on failure: see `rgaps_error_text`
 */
rgaps_publisher_t *rgaps_publisher_init_abi(uint32_t abi_version, const char *topic_name);

/**
 * Publishes one message of raw bytes.
 *
 * @param device_pointer  `message_size` bytes of device memory, on the host backend of plain memory. The copy is behind the work of CUDA's
 *                        default stream so far; the memory stays as it is until that stream has made it.
 * @return                0, or an rgaps_status_t
 */
int32_t rgaps_publisher_push(rgaps_publisher_t *publisher,
                             size_t message_size,
                             const void *device_pointer);

/**
 * Attaches the calling process as a subscriber of raw bytes. Called through `rgaps_subscriber_init`.
 *
 * @param abi_version  RGAPS_ABI_VERSION of the header that the program was built with
 * @return             NULL on failure: see `rgaps_error_text`
 */
rgaps_subscriber_t *rgaps_subscriber_init_abi(uint32_t abi_version, const char *topic_name);

/**
 * Retrieves one message; waits at most RGAPS_PULL_TIMEOUT_NS for it. Releases the message that this handle pulled before, behind the work
 * that CUDA's default stream has got by then.
 *
 * @return  the payload on the device, on the host backend a plain pointer; it must not be written, and is valid until the handle's next pull
 *          or destroy. NULL if none came (`rgaps_error_status` is RGAPS_TIMED_OUT), if the message has no bytes (RGAPS_OK: see
 *          `rgaps_subscriber_pulled`), or on failure.
 */
void *rgaps_subscriber_pull(rgaps_subscriber_t *subscriber);

/**
 * The message that a handle has pulled last, for its size and all else; NULL if none. It is the handle's: do not release it.
 */
const rgaps_sample_t *rgaps_subscriber_pulled(const rgaps_subscriber_t *subscriber);

/**
 * What the last failed call of this thread said, with its numbers and the next step. Never NULL; empty if none has failed. Valid until
 * the thread's next failed call.
 */
const char *rgaps_error_text(void);

/**
 * The status of the last failed call of this thread, for calls that return something else; `RGAPS_OK` if none has failed.
 */
rgaps_status_t rgaps_error_status(void);

/**
 * The name of a status, such as "RGAPS_NO_SPACE"; "unknown" for a number that is none.
 */
const char *rgaps_status_name(int32_t status);

/**
 * ROS 2's default QoS: reliable, volatile, keep-last 10.
 */
rgaps_subscriber_qos_t rgaps_subscriber_qos_default(void);

/**
 * Makes a subscriber. The topic is made if it does not exist; its type must be of this kind. From the return on, no message is missed.
 *
 * @param topic       a ROS name; with or without the leading slash it is one
 * @param kind        an rgaps_kind_t
 * @param qos         NULL takes the default
 * @param subscriber  the subscriber; `rgaps_subscriber_destroy` ends it
 */
rgaps_status_t rgaps_subscriber_create(const rgaps_node_t *node,
                                       const char *topic,
                                       uint32_t kind,
                                       const rgaps_subscriber_qos_t *qos,
                                       rgaps_subscriber_t **subscriber);

/**
 * Ends a subscriber; threads that wait for its messages, or for one that they take by handle, are told that it is gone (`RGAPS_INVALID_HANDLE`). Messages that it has taken stay
 * until they are released, but for the one that `rgaps_subscriber_pull` gave out. NULL is no error.
 */
void rgaps_subscriber_destroy(rgaps_subscriber_t *subscriber);

/**
 * Ends the waits and takes by handle of a subscriber that other threads are in, with `RGAPS_TIMED_OUT`, and lets no later one wait: what is there is taken
 * and taken as before. For a program that shuts down.
 */
rgaps_status_t rgaps_subscriber_interrupt(const rgaps_subscriber_t *subscriber);

/**
 * The next message if one is ready, with its bytes there; else `RGAPS_NO_MESSAGE`.
 *
 * @param message  ends with `rgaps_sample_release`
 */
rgaps_status_t rgaps_subscriber_take(const rgaps_subscriber_t *subscriber, rgaps_sample_t **message);

/**
 * The next message, whose bytes the device may still have to bring: later work of the stream waits for them. The call does not wait for the
 * device. `rgaps_sample_readiness` tells, after the stream has been synchronised, whether they came.
 *
 * @param stream   a CUstream or cudaStream_t of the device's primary context; NULL is CUDA's default stream. On the host backend this is
 *                 `rgaps_subscriber_take`.
 * @param message  ends with `rgaps_sample_release`
 */
rgaps_status_t rgaps_subscriber_take_on(const rgaps_subscriber_t *subscriber,
                                        void *stream,
                                        rgaps_sample_t **message);

/**
 * Everything that can be taken now, oldest first, at most `capacity` messages. What fails after the first one ends the batch; it is told by a
 * call that takes nothing, and so by the next one if it lasts, as RGAPS_TOO_MANY_HELD does while the batch is held.
 *
 * @param messages  `capacity` places; each message that was given out ends with `rgaps_sample_release`
 * @param count     how many there are; 0 if the call fails
 */
rgaps_status_t rgaps_subscriber_take_all(const rgaps_subscriber_t *subscriber,
                                         rgaps_sample_t **messages,
                                         uint64_t capacity,
                                         uint64_t *count);

/**
 * The next message, with its bytes there; `RGAPS_TIMED_OUT` if none came in time. Other threads may use the subscriber meanwhile.
 *
 * @param timeout_ns  ns to wait at most; UINT64_MAX for as long as it takes
 * @param message     ends with `rgaps_sample_release`
 */
rgaps_status_t rgaps_subscriber_wait(const rgaps_subscriber_t *subscriber,
                                     uint64_t timeout_ns,
                                     rgaps_sample_t **message);

/**
 * The message that a handle names, as this subscriber gets it: in its order or out of it. Waits at most `timeout_ns` for it to come from
 * another host. Messages before it stay as if they had not been read, for later takes by handle and in turn; of a keep-all subscriber, the newest 64.
 *
 * `RGAPS_STALE` if the handle names nothing that this subscriber has or will have: of an earlier run (replayed), released, or taken before.
 * `RGAPS_EARLY` if it was published before the subscriber was there; that is said of as many of a publisher as the subscriber is deep (64 at
 * most), and more of them are `RGAPS_STALE`.
 *
 * @param handle      from a publisher of this topic, or another subscriber, by any way; it may be wrong
 * @param timeout_ns  ns to wait at most; UINT64_MAX for as long as it takes
 * @param stream      as for `rgaps_subscriber_take_on`: NULL with a node on a GPU is CUDA's default stream
 * @param message     ends with `rgaps_sample_release`
 */
rgaps_status_t rgaps_subscriber_take_by_handle_on(const rgaps_subscriber_t *subscriber,
                                                  const rgaps_message_handle_t *handle,
                                                  uint64_t timeout_ns,
                                                  void *stream,
                                                  rgaps_sample_t **message);

/**
 * As `rgaps_subscriber_take_by_handle_on`, with the message's bytes there.
 */
rgaps_status_t rgaps_subscriber_take_by_handle(const rgaps_subscriber_t *subscriber,
                                               const rgaps_message_handle_t *handle,
                                               uint64_t timeout_ns,
                                               rgaps_sample_t **message);

/**
 * From now on takes by handle come in the order in which each publisher has published: what lies before a message that is taken, of its publisher,
 * is released and not kept for later takes by handle. It counts as lost, but for what came before the first take by handle of that publisher.
 */
rgaps_status_t rgaps_subscriber_expect_handles_in_order(const rgaps_subscriber_t *subscriber);

/**
 * A descriptor that is readable while a message may be ready, for epoll, poll and select. Do not read or close it: take until there is no
 * message, which silences it. It is the subscriber's, and ends with it.
 */
rgaps_status_t rgaps_subscriber_fd(const rgaps_subscriber_t *subscriber,
                                   int32_t *fd);

/**
 * The counters of a subscriber.
 */
rgaps_status_t rgaps_subscriber_statistics(const rgaps_subscriber_t *subscriber,
                                           rgaps_subscriber_statistics_t *statistics);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#ifdef __cplusplus
extern "C" {
#endif

/* These tell the library which header the program was built with. */

/** Makes a node. See rgaps_node_create_abi. */
static inline rgaps_status_t rgaps_node_create(const rgaps_node_options_t *options, rgaps_node_t **node) {
  return rgaps_node_create_abi(RGAPS_ABI_VERSION, options, node);
}

/** Attaches the calling process as a publisher of raw bytes. See rgaps_publisher_init_abi. */
static inline rgaps_publisher_t *rgaps_publisher_init(const char *topic_name) {
  return rgaps_publisher_init_abi(RGAPS_ABI_VERSION, topic_name);
}

/** Attaches the calling process as a subscriber of raw bytes. See rgaps_subscriber_init_abi. */
static inline rgaps_subscriber_t *rgaps_subscriber_init(const char *topic_name) {
  return rgaps_subscriber_init_abi(RGAPS_ABI_VERSION, topic_name);
}

#ifdef __cplusplus
}
#endif

#endif /* RGAPS_H */
