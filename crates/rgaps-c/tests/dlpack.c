/* DLPack as an array library uses it: the contents of a tensor, and the lifetime of its memory. */

#include <pthread.h>

#include "check.h"
#include "tensor.h"

static rgaps_node_t *node;

static struct DLManagedTensorVersioned *tensor_of(const rgaps_sample_t *message, const char *field) {
  struct DLManagedTensorVersioned *tensor = NULL;
  OK(rgaps_sample_dlpack(message, field, NULL, &tensor));
  CHECK(tensor != NULL && tensor->major == 1 && tensor->minor == 1 && tensor->deleter != NULL);
  CHECK(tensor->tensor.device_type == 1 && tensor->tensor.device_id == 0 && tensor->tensor.byte_offset == 0);
  CHECK(tensor->flags == IS_READ_ONLY);
  return tensor;
}

static uint64_t held_by(const rgaps_subscriber_t *subscriber) {
  rgaps_subscriber_statistics_t statistics;
  OK(rgaps_subscriber_statistics(subscriber, &statistics));
  return statistics.held;
}

static void a_picture_is_rows_of_pixels_of_channels(void) {
  rgaps_publisher_t *publisher = publisher_of(node, "/ctest/picture", RGAPS_KIND_IMAGE);
  rgaps_subscriber_t *subscriber = subscriber_of(node, "/ctest/picture", RGAPS_KIND_IMAGE);
  struct DLManagedTensorVersioned *tensor = NULL;
  rgaps_loan_t *loan = NULL;
  rgaps_sample_t *message;
  const void *data = NULL;
  void *filled = NULL;
  rgaps_meta_t meta;
  OK(rgaps_meta_image(&meta, 6, 4, "rgb8"));
  meta.as.image.step = 32;
  OK(rgaps_publisher_loan(publisher, &meta, &loan));
  OK(rgaps_loan_dlpack(loan, NULL, &tensor));
  OK(rgaps_loan_device_pointer(loan, &filled));
  CHECK(tensor->flags == 0 && tensor->tensor.data == filled);
  for (int64_t row = 0; row < tensor->tensor.shape[0]; row++) {
    for (int64_t column = 0; column < tensor->tensor.shape[1]; column++) {
      for (int64_t channel = 0; channel < tensor->tensor.shape[2]; channel++) {
        int64_t at = row * tensor->tensor.strides[0] + column * tensor->tensor.strides[1] + channel * tensor->tensor.strides[2];
        ((uint8_t *)tensor->tensor.data)[at] = (uint8_t)(100 * row + 10 * column + channel);
      }
    }
  }
  OK(rgaps_loan_publish(loan, NULL, NULL));
  tensor->deleter(tensor);

  message = next_of(subscriber);
  OK(rgaps_sample_data(message, &data, NULL));
  tensor = tensor_of(message, NULL);
  CHECK(tensor->tensor.data == data && tensor->tensor.ndim == 3);
  CHECK(tensor->tensor.code == UNSIGNED && tensor->tensor.bits == 8 && tensor->tensor.lanes == 1);
  CHECK(tensor->tensor.shape[0] == 4 && tensor->tensor.shape[1] == 6 && tensor->tensor.shape[2] == 3);
  CHECK(tensor->tensor.strides[0] == 32 && tensor->tensor.strides[1] == 3 && tensor->tensor.strides[2] == 1);
  CHECK(((const uint8_t *)data)[2 * 32 + 5 * 3 + 1] == (uint8_t)251);
  tensor->deleter(tensor);
  OK(rgaps_sample_release(message, NULL));
  rgaps_publisher_destroy(publisher);
  rgaps_subscriber_destroy(subscriber);
}

struct point {
  float x, y, z;
  uint16_t ring, spare;
};

static void each_field_of_a_cloud_is_a_column_that_holds_the_message(void) {
  rgaps_publisher_t *publisher = publisher_of(node, "/ctest/cloud", RGAPS_KIND_POINT_CLOUD);
  rgaps_subscriber_t *subscriber = subscriber_of(node, "/ctest/cloud", RGAPS_KIND_POINT_CLOUD);
  struct DLManagedTensorVersioned *y, *ring, *none = NULL;
  struct point points[50];
  rgaps_sample_t *message;
  rgaps_meta_t meta;
  OK(rgaps_meta_point_cloud(&meta, 50, 1, sizeof(struct point)));
  OK(rgaps_meta_add_field(&meta, "x", offsetof(struct point, x), 7));
  OK(rgaps_meta_add_field(&meta, "y", offsetof(struct point, y), 7));
  OK(rgaps_meta_add_field(&meta, "z", offsetof(struct point, z), 7));
  OK(rgaps_meta_add_field(&meta, "ring", offsetof(struct point, ring), 4));
  for (int index = 0; index < 50; index++) points[index] = (struct point){0, (float)index / 2, 0, (uint16_t)(index + 1000), 0};
  OK(rgaps_publisher_push_host(publisher, &meta, points, sizeof points, NULL));
  message = next_of(subscriber);
  FAILS(rgaps_sample_dlpack(message, "w", NULL, &none), RGAPS_INVALID_ARGUMENT, "x, y, z, ring");
  CHECK(none == NULL);
  y = tensor_of(message, "y");
  ring = tensor_of(message, "ring");
  OK(rgaps_sample_release(message, NULL));
  CHECK(held_by(subscriber) == 1);
  CHECK(y->tensor.code == FLOATING_POINT && y->tensor.bits == 32 && ring->tensor.code == UNSIGNED && ring->tensor.bits == 16);
  CHECK(y->tensor.shape[y->tensor.ndim - 1] == 50 && y->tensor.strides[y->tensor.ndim - 1] == 4);
  CHECK(ring->tensor.strides[ring->tensor.ndim - 1] == 8);
  for (int index = 0; index < 50; index++) {
    CHECK(((const float *)y->tensor.data)[index * 4] == (float)index / 2);
    CHECK(((const uint16_t *)ring->tensor.data)[index * 8] == index + 1000);
  }
  y->deleter(y);
  CHECK(held_by(subscriber) == 1);
  ring->deleter(ring);
  CHECK(held_by(subscriber) == 0);
  rgaps_publisher_destroy(publisher);
  rgaps_subscriber_destroy(subscriber);
}

static void *delete_it(void *argument) {
  struct DLManagedTensorVersioned *tensor = argument;
  tensor->deleter(tensor);
  return NULL;
}

static void a_tensor_outlives_its_message_and_node_and_any_thread_may_delete_it(void) {
  rgaps_node_t *own = node_on(NULL);
  rgaps_publisher_t *publisher = publisher_of(own, "/ctest/outlives", RGAPS_KIND_TENSOR);
  rgaps_subscriber_t *subscriber = subscriber_of(own, "/ctest/outlives", RGAPS_KIND_TENSOR);
  const int64_t shape[] = {10, 20};
  double numbers[200];
  struct DLManagedTensorVersioned *tensor, *empty;
  rgaps_publisher_statistics_t statistics;
  rgaps_sample_t *message;
  rgaps_meta_t meta;
  pthread_t thread;
  for (int index = 0; index < 200; index++) numbers[index] = index * 0.5;
  OK(rgaps_meta_tensor(&meta, FLOATING_POINT, 64, 2, shape));
  OK(rgaps_publisher_push_host(publisher, &meta, numbers, sizeof numbers, NULL));
  message = next_of(subscriber);
  tensor = tensor_of(message, NULL);
  OK(rgaps_sample_release(message, NULL));

  /* An empty tensor has no data pointer. */
  {
    const int64_t nothing[] = {0, 3};
    OK(rgaps_meta_tensor(&meta, FLOATING_POINT, 64, 2, nothing));
    OK(rgaps_publisher_push_host(publisher, &meta, NULL, 0, NULL));
    message = next_of(subscriber);
    empty = tensor_of(message, NULL);
    CHECK(empty->tensor.data == NULL && empty->tensor.ndim == 2 && empty->tensor.shape[0] == 0);
    empty->deleter(empty);
    OK(rgaps_sample_release(message, NULL));
  }

  rgaps_subscriber_destroy(subscriber);
  rgaps_node_destroy(own);
  /* A held message stays unchanged while more bytes than the pool has are published. */
  OK(rgaps_meta_tensor(&meta, FLOATING_POINT, 64, 2, shape));
  OK(rgaps_publisher_statistics(publisher, &statistics));
  for (uint64_t count = 0; count < 3000; count++) {
    double others[200] = {7};
    OK(rgaps_publisher_push_host(publisher, &meta, others, sizeof others, NULL));
  }
  rgaps_publisher_destroy(publisher);
  CHECK(tensor->tensor.shape[0] == 10 && tensor->tensor.shape[1] == 20 && tensor->tensor.strides[0] == 20);
  CHECK(memcmp(tensor->tensor.data, numbers, sizeof numbers) == 0);
  CHECK(pthread_create(&thread, NULL, delete_it, tensor) == 0);
  CHECK(pthread_join(thread, NULL) == 0);
}

static void a_tensor_that_is_deleted_last_frees_the_block(void) {
  rgaps_publisher_qos_t offered = rgaps_publisher_qos_default();
  rgaps_publisher_t *publisher = NULL;
  rgaps_subscriber_t *subscriber = subscriber_of(node, "/ctest/block", RGAPS_KIND_BYTES);
  struct DLManagedTensorVersioned *tensor;
  rgaps_publisher_statistics_t statistics;
  rgaps_sample_t *message;
  rgaps_loan_t *loan = NULL;
  rgaps_meta_t meta = bytes_meta(3 << 20);
  offered.pool_bytes = 4 << 20;
  offered.exhaustion = RGAPS_REFUSE;
  OK(rgaps_publisher_create(node, "/ctest/block", RGAPS_KIND_BYTES, &offered, &publisher));
  OK(rgaps_publisher_loan(publisher, &meta, &loan));
  OK(rgaps_loan_publish(loan, NULL, NULL));
  message = next_of(subscriber);
  tensor = tensor_of(message, NULL);
  CHECK(tensor->tensor.shape[0] == 3 << 20);
  OK(rgaps_sample_release(message, NULL));
  CHECK(rgaps_publisher_loan(publisher, &meta, &loan) == RGAPS_NO_SPACE);
  tensor->deleter(tensor);
  OK(rgaps_publisher_loan(publisher, &meta, &loan));
  OK(rgaps_loan_discard(loan));
  OK(rgaps_publisher_statistics(publisher, &statistics));
  CHECK(statistics.used_bytes == 0);
  rgaps_publisher_destroy(publisher);
  rgaps_subscriber_destroy(subscriber);
}

int main(void) {
  node = node_on(NULL);
  a_picture_is_rows_of_pixels_of_channels();
  each_field_of_a_cloud_is_a_column_that_holds_the_message();
  a_tensor_outlives_its_message_and_node_and_any_thread_may_delete_it();
  a_tensor_that_is_deleted_last_frees_the_block();
  rgaps_node_destroy(node);
  return 0;
}
