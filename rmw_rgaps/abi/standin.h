/* Declarations of rmw, rcutils and rosidl, as far as the layer and its tests need them, for machines without ROS. RGAPS_STANDIN is
 * 0 for Humble, 1 for Jazzy, 2 for Kilted, 3 for Lyrical. Names, types and order are ROS's; types used only through pointers stay incomplete. */
typedef int32_t rmw_ret_t;

enum
{
  RMW_RET_OK = 0,
  RMW_RET_ERROR = 1,
  RMW_RET_TIMEOUT = 2,
  RMW_RET_UNSUPPORTED = 3,
  RMW_RET_BAD_ALLOC = 10,
  RMW_RET_INVALID_ARGUMENT = 11,
  RMW_RET_INCORRECT_RMW_IMPLEMENTATION = 12
};

typedef struct rmw_client_t rmw_client_t;
typedef struct rmw_service_t rmw_service_t;
typedef struct rmw_service_info_t rmw_service_info_t;
typedef struct rmw_request_id_t rmw_request_id_t;
typedef struct rmw_wait_set_t rmw_wait_set_t;
typedef struct rmw_names_and_types_t rmw_names_and_types_t;
typedef struct rmw_topic_endpoint_info_array_t rmw_topic_endpoint_info_array_t;
typedef struct rmw_service_endpoint_info_array_t rmw_service_endpoint_info_array_t;
typedef struct rmw_network_flow_endpoint_array_t rmw_network_flow_endpoint_array_t;
typedef struct rmw_publisher_allocation_t rmw_publisher_allocation_t;
typedef struct rmw_subscription_allocation_t rmw_subscription_allocation_t;
typedef struct rmw_subscription_content_filter_options_t rmw_subscription_content_filter_options_t;
typedef struct rcutils_string_array_t rcutils_string_array_t;
typedef struct rosidl_service_type_support_t rosidl_service_type_support_t;
typedef struct rosidl_runtime_c__Sequence__bound rosidl_runtime_c__Sequence__bound;
typedef struct rosidl_dynamic_typesupport_dynamic_data_t rosidl_dynamic_typesupport_dynamic_data_t;
typedef struct rosidl_dynamic_typesupport_serialization_support_t rosidl_dynamic_typesupport_serialization_support_t;

typedef struct
{
  void *(*allocate)(size_t, void *);
  void (*deallocate)(void *, void *);
  void *(*reallocate)(void *, size_t, void *);
  void *(*zero_allocate)(size_t, size_t, void *);
  void *state;
} rcutils_allocator_t;

typedef struct
{
  uint8_t *buffer;
  size_t buffer_length;
  size_t buffer_capacity;
  rcutils_allocator_t allocator;
} rmw_serialized_message_t;

typedef struct rosidl_message_type_support_t rosidl_message_type_support_t;
typedef const rosidl_message_type_support_t *(*rosidl_message_typesupport_handle_function)(
  const rosidl_message_type_support_t *, const char *);
struct rosidl_message_type_support_t
{
  const char *typesupport_identifier;
  const void *data;
  rosidl_message_typesupport_handle_function func;
#if RGAPS_STANDIN >= 1
  const void *(*get_type_hash_func)(const rosidl_message_type_support_t *);
  const void *(*get_type_description_func)(const rosidl_message_type_support_t *);
  const void *(*get_type_description_sources_func)(const rosidl_message_type_support_t *);
#endif
};

typedef struct
{
  uint64_t sec;
  uint64_t nsec;
} rmw_time_t;

/* Settings of a context, of which only the size matters. */
typedef struct
{
  uint64_t instance_id;
  const char *implementation_identifier;
  size_t domain_id;
  struct
  {
    int enforce_security;
    char *security_root_path;
  } security_options;
#if RGAPS_STANDIN <= 1
  int localhost_only;
#endif
#if RGAPS_STANDIN >= 1
  struct
  {
    int automatic_discovery_range;
    void *static_peers;
    size_t static_peers_count;
    rcutils_allocator_t allocator;
  } discovery_options;
#endif
  char *enclave;
  rcutils_allocator_t allocator;
  void *impl;
} rmw_init_options_t;

typedef struct
{
  uint64_t instance_id;
  const char *implementation_identifier;
  rmw_init_options_t options;
  size_t actual_domain_id;
  void *impl;
} rmw_context_t;

typedef struct
{
  const char *implementation_identifier;
  void *data;
  const char *name;
  const char *namespace_;
  rmw_context_t *context;
} rmw_node_t;

typedef struct
{
  void *rmw_specific_publisher_payload;
  int require_unique_network_flow_endpoints;
} rmw_publisher_options_t;

typedef struct
{
  const char *implementation_identifier;
  void *data;
  const char *topic_name;
  rmw_publisher_options_t options;
  bool can_loan_messages;
} rmw_publisher_t;

typedef struct
{
  void *rmw_specific_subscription_payload;
  bool ignore_local_publications;
  int require_unique_network_flow_endpoints;
  rmw_subscription_content_filter_options_t *content_filter_options;
#if RGAPS_STANDIN >= 3
  const char *acceptable_buffer_backends;
#endif
} rmw_subscription_options_t;

typedef struct
{
  const char *implementation_identifier;
  void *data;
  const char *topic_name;
  rmw_subscription_options_t options;
  bool can_loan_messages;
  bool is_cft_enabled;
#if RGAPS_STANDIN >= 3
  bool is_cft_supported;
#endif
} rmw_subscription_t;

typedef struct
{
  const char *implementation_identifier;
  void *data;
  rmw_context_t *context;
} rmw_guard_condition_t;

typedef struct
{
  size_t subscriber_count;
  void **subscribers;
} rmw_subscriptions_t;

typedef struct
{
  size_t guard_condition_count;
  void **guard_conditions;
} rmw_guard_conditions_t;

typedef struct
{
  size_t service_count;
  void **services;
} rmw_services_t;

typedef struct
{
  size_t client_count;
  void **clients;
} rmw_clients_t;

typedef struct
{
  size_t event_count;
  void **events;
} rmw_events_t;

typedef enum
{
  RMW_QOS_POLICY_HISTORY_SYSTEM_DEFAULT,
  RMW_QOS_POLICY_HISTORY_KEEP_LAST,
  RMW_QOS_POLICY_HISTORY_KEEP_ALL
} rmw_qos_history_policy_t;

typedef enum
{
  RMW_QOS_POLICY_RELIABILITY_SYSTEM_DEFAULT,
  RMW_QOS_POLICY_RELIABILITY_RELIABLE,
  RMW_QOS_POLICY_RELIABILITY_BEST_EFFORT
} rmw_qos_reliability_policy_t;

typedef enum
{
  RMW_QOS_POLICY_DURABILITY_SYSTEM_DEFAULT,
  RMW_QOS_POLICY_DURABILITY_TRANSIENT_LOCAL,
  RMW_QOS_POLICY_DURABILITY_VOLATILE
} rmw_qos_durability_policy_t;

typedef enum
{
  RMW_QOS_POLICY_LIVELINESS_SYSTEM_DEFAULT,
  RMW_QOS_POLICY_LIVELINESS_AUTOMATIC
} rmw_qos_liveliness_policy_t;

typedef enum
{
  RMW_QOS_COMPATIBILITY_OK,
  RMW_QOS_COMPATIBILITY_WARNING,
  RMW_QOS_COMPATIBILITY_ERROR
} rmw_qos_compatibility_type_t;

typedef struct
{
  rmw_qos_history_policy_t history;
  size_t depth;
  rmw_qos_reliability_policy_t reliability;
  rmw_qos_durability_policy_t durability;
  rmw_time_t deadline;
  rmw_time_t lifespan;
  rmw_qos_liveliness_policy_t liveliness;
  rmw_time_t liveliness_lease_duration;
  bool avoid_ros_namespace_conventions;
} rmw_qos_profile_t;

typedef struct
{
  const char *implementation_identifier;
#if RGAPS_STANDIN >= 1
  uint8_t data[16];
#else
  uint8_t data[24];
#endif
} rmw_gid_t;

typedef struct
{
  int64_t source_timestamp;
  int64_t received_timestamp;
  uint64_t publication_sequence_number;
  uint64_t reception_sequence_number;
  rmw_gid_t publisher_gid;
  bool from_intra_process;
} rmw_message_info_t;

typedef struct
{
  void **data;
  size_t size;
  size_t capacity;
  rcutils_allocator_t *allocator;
} rmw_message_sequence_t;

typedef struct
{
  rmw_message_info_t *data;
  size_t size;
  size_t capacity;
  rcutils_allocator_t *allocator;
} rmw_message_info_sequence_t;

typedef enum
{
#if RGAPS_STANDIN >= 2
  RMW_EVENT_INVALID,
#endif
  RMW_EVENT_LIVELINESS_CHANGED,
  RMW_EVENT_REQUESTED_DEADLINE_MISSED,
  RMW_EVENT_REQUESTED_QOS_INCOMPATIBLE,
  RMW_EVENT_MESSAGE_LOST
} rmw_event_type_t;

typedef struct
{
  const char *implementation_identifier;
  void *data;
  rmw_event_type_t event_type;
} rmw_event_t;

typedef struct
{
  size_t total_count;
  size_t total_count_change;
} rmw_message_lost_status_t;

typedef void (*rmw_event_callback_t)(const void *, size_t);

typedef enum
{
  RMW_FEATURE_MESSAGE_INFO_PUBLICATION_SEQUENCE_NUMBER,
  RMW_FEATURE_MESSAGE_INFO_RECEPTION_SEQUENCE_NUMBER
} rmw_feature_t;

typedef enum
{
  RMW_LOG_SEVERITY_DEBUG = 10,
  RMW_LOG_SEVERITY_INFO = 20,
  RMW_LOG_SEVERITY_WARN = 30,
  RMW_LOG_SEVERITY_ERROR = 40,
  RMW_LOG_SEVERITY_FATAL = 50
} rmw_log_severity_t;
