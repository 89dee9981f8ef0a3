/* Misuse of the calls for ROS clients: each returns an error with a reason, and the program continues. rgaps_ros/test has their use. */

#include "check.h"

static void an_endpoint_and_its_values_are_checked(void) {
  rgaps_ros_endpoint_t endpoint = {.topic = "/ctest/eye", .role = RGAPS_ROS_SUBSCRIPTION}, wrong = {.topic = NULL};
  rgaps_ros_parameter_t table[RGAPS_ROS_PARAMETERS_MAX];
  rgaps_publisher_qos_t offered = {.history_depth = 77};
  rgaps_subscriber_qos_t requested = {.depth = 77};
  uint64_t count = 77, timeout_ns = 77;

  FAILS(rgaps_ros_parameters(NULL, table, &count), RGAPS_INVALID_ARGUMENT, "endpoint is NULL");
  FAILS(rgaps_ros_parameters(&wrong, table, &count), RGAPS_INVALID_ARGUMENT, "topic is NULL");
  wrong.topic = "caf\xe9";
  FAILS(rgaps_ros_parameters(&wrong, table, &count), RGAPS_INVALID_ARGUMENT, "topic is not UTF-8");
  wrong.topic = "/ctest/eye", wrong.role = 2;
  FAILS(rgaps_ros_parameters(&wrong, table, &count), RGAPS_INVALID_ARGUMENT, "role is 2");
  FAILS(rgaps_ros_parameters(&endpoint, NULL, &count), RGAPS_INVALID_ARGUMENT, "parameters is NULL");
  FAILS(rgaps_ros_parameters(&endpoint, table, NULL), RGAPS_INVALID_ARGUMENT, "count is NULL");
  CHECK(count == 77);
  OK(rgaps_ros_parameters(&endpoint, table, &count));
  FAILS(rgaps_ros_publisher_qos(&endpoint, table, count, &offered), RGAPS_INVALID_ARGUMENT, "3 parameters were given, but the endpoint has 6");
  FAILS(rgaps_ros_publisher_qos(NULL, table, count, &offered), RGAPS_INVALID_ARGUMENT, "endpoint is NULL");
  FAILS(rgaps_ros_subscriber_qos(&endpoint, NULL, count, &requested, &timeout_ns), RGAPS_INVALID_ARGUMENT, "parameters is NULL");
  FAILS(rgaps_ros_subscriber_qos(&endpoint, table, count, NULL, &timeout_ns), RGAPS_INVALID_ARGUMENT, "qos is NULL");
  FAILS(rgaps_ros_subscriber_qos(&endpoint, table, count, &requested, NULL), RGAPS_INVALID_ARGUMENT, "payload_timeout_ns is NULL");
  table[0].type = 9;
  FAILS(rgaps_ros_publisher_qos(&endpoint, table, count, &offered), RGAPS_INVALID_ARGUMENT, "3 parameters were given");
  FAILS(rgaps_ros_publisher_qos(&endpoint, table, UINT32_MAX, &offered), RGAPS_INVALID_ARGUMENT, "4294967295 parameters were given");
  table[0].type = RGAPS_ROS_INTEGER;
  memset(table[2].text, 'x', sizeof table[2].text);
  FAILS(rgaps_ros_subscriber_qos(&endpoint, table, count, &requested, &timeout_ns), RGAPS_INVALID_ARGUMENT, "parameter rgaps.device is 'xxx");
  table[2].type = 9;
  FAILS(rgaps_ros_subscriber_qos(&endpoint, table, count, &requested, &timeout_ns), RGAPS_INVALID_ARGUMENT, "no type 9");
  CHECK(timeout_ns == 77 && requested.depth == 77 && offered.history_depth == 77);
}

static void every_call_refuses_a_wrong_handle(void) {
  rgaps_node_t *node = node_on(NULL);
  rgaps_subscriber_t *subscriber = subscriber_of(node, "/ctest/ros", RGAPS_KIND_BYTES);
  rgaps_ros_payloads_t *payloads = NULL, *released = NULL;
  rgaps_message_handle_t handle = {.kind = RGAPS_KIND_BYTES};
  rgaps_meta_t meta = bytes_meta(8), other = {.kind = RGAPS_KIND_TENSOR};
  rgaps_ros_status_t status = {.count = 0};
  rgaps_sample_t *message = NULL;
  uint64_t refused = 77, early = 77;

  FAILS(rgaps_ros_payloads_create(subscriber, 0, NULL, NULL, NULL), RGAPS_INVALID_ARGUMENT, "payloads is NULL");
  FAILS(rgaps_ros_payloads_create((void *)node, 0, NULL, NULL, &payloads), RGAPS_INVALID_HANDLE, "handle of a node");
  OK(rgaps_ros_payloads_create(subscriber, 0, NULL, NULL, &released));
  rgaps_ros_payloads_destroy(released);
  rgaps_ros_payloads_destroy(NULL);
  void *const wrong[] = {NULL, node, subscriber, released, &status};
  for (size_t index = 0; index < sizeof wrong / sizeof *wrong; index++) {
    CHECK(rgaps_ros_payloads_take(wrong[index], &handle, &meta, NULL, &message) == RGAPS_INVALID_HANDLE);
    CHECK(rgaps_ros_payloads_refuse(wrong[index], 1, 0, "text") == RGAPS_INVALID_HANDLE);
    CHECK(rgaps_ros_payloads_counts(wrong[index], &refused, &early) == RGAPS_INVALID_HANDLE);
    CHECK(rgaps_ros_payloads_status(wrong[index], "/n", &status) == RGAPS_INVALID_HANDLE);
    CHECK(rgaps_ros_publisher_status(wrong[index], "/n", &status) == RGAPS_INVALID_HANDLE);
  }
  OK(rgaps_ros_payloads_create(subscriber, 0, NULL, NULL, &payloads));
  FAILS(rgaps_ros_payloads_take(payloads, NULL, &meta, NULL, &message), RGAPS_INVALID_ARGUMENT, "handle is NULL");
  FAILS(rgaps_ros_payloads_take(payloads, &handle, NULL, NULL, &message), RGAPS_INVALID_ARGUMENT, "meta is NULL");
  FAILS(rgaps_ros_payloads_take(payloads, &handle, &meta, NULL, NULL), RGAPS_INVALID_ARGUMENT, "message is NULL");
  FAILS(rgaps_ros_payloads_take(payloads, &handle, &other, NULL, &message), RGAPS_WRONG_KIND, "kind 3, where 0 (bytes) is needed");
  FAILS(rgaps_ros_payloads_refuse(payloads, 1, 0, NULL), RGAPS_INVALID_ARGUMENT, "text is NULL");
  FAILS(rgaps_ros_payloads_counts(payloads, NULL, &early), RGAPS_INVALID_ARGUMENT, "refused is NULL");
  FAILS(rgaps_ros_payloads_status(payloads, NULL, &status), RGAPS_INVALID_ARGUMENT, "node is NULL");
  FAILS(rgaps_ros_payloads_status(payloads, "/n", NULL), RGAPS_INVALID_ARGUMENT, "status is NULL");
  FAILS(rgaps_ros_descriptor_check(NULL, &meta), RGAPS_INVALID_ARGUMENT, "handle is NULL");
  FAILS(rgaps_ros_descriptor_check(&handle, NULL), RGAPS_INVALID_ARGUMENT, "meta is NULL");
  CHECK(message == NULL && refused == 77 && early == 77 && status.count == 0);

  /* Without a log a refusal is counted all the same. A status may have a count that is no count. */
  FAILS(rgaps_ros_payloads_take(payloads, &handle, &meta, NULL, &message), RGAPS_WRONG_VERSION, "layout version 0");
  OK(rgaps_ros_payloads_counts(payloads, &refused, &early));
  status.count = UINT32_MAX;
  OK(rgaps_ros_payloads_status(payloads, "/n", &status));
  /* Metadata of another kind was refused above. */
  CHECK(refused == 2 && early == 0 && status.count == 8);

  /* The object does not keep a destroyed subscriber alive. */
  rgaps_publisher_t *publisher = publisher_of(node, "/ctest/ros", RGAPS_KIND_BYTES);
  OK(rgaps_publisher_push_host(publisher, &meta, "payload", 8, &handle));
  CHECK(rgaps_publisher_subscriber_count(publisher) == 1);
  rgaps_subscriber_destroy(subscriber);
  CHECK(rgaps_publisher_subscriber_count(publisher) == 0);
  CHECK(rgaps_ros_payloads_take(payloads, &handle, &meta, NULL, &message) == RGAPS_NO_MESSAGE);
  FAILS(rgaps_ros_payloads_status(payloads, "/n", &status), RGAPS_INVALID_HANDLE, "released or destroyed");
  OK(rgaps_ros_payloads_counts(payloads, &refused, &early));
  CHECK(message == NULL && refused == 2);
  rgaps_publisher_destroy(publisher);
  rgaps_ros_payloads_destroy(payloads);
  rgaps_node_destroy(node);
}

int main(void) {
  an_endpoint_and_its_values_are_checked();
  every_call_refuses_a_wrong_handle();
  printf("every call for ROS clients refuses what is wrong\n");
  return 0;
}
