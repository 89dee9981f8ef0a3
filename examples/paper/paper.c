/* The programming interface of the paper, §3.7, with a prefix: one process publishes a buffer on a topic, another reads it in place.
 *
 *   cc paper.c $(pkg-config --cflags --libs rgaps) -o paper
 *   paper publish TOPIC COUNT
 *   paper subscribe TOPIC COUNT
 *
 * On a GPU the buffer is device memory; in this program, which does not use CUDA, it is host memory.
 */

#include <rgaps.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MESSAGE_BYTES = 4 << 20, PULLS_MAX = 10 };

static int publish(char *topic_name, int count) {
  rgaps_publisher_t *publisher = rgaps_publisher_init(topic_name);
  void *device_pointer = malloc(MESSAGE_BYTES);
  if (publisher == NULL || device_pointer == NULL) {
    fprintf(stderr, "paper: %s\n", rgaps_error_text());
    return 1;
  }
  int status = 0;
  for (int i = 0; i < count && status == 0; ++i) {
    memset(device_pointer, i, MESSAGE_BYTES);
    status = rgaps_publisher_push(publisher, MESSAGE_BYTES, device_pointer);
  }
  if (status != 0) fprintf(stderr, "paper: %s\n", rgaps_error_text());
  else printf("pushed %d messages of %d B\n", count, MESSAGE_BYTES);
  free(device_pointer);
  rgaps_publisher_destroy(publisher);
  return status;
}

static int subscribe(char *topic_name, int count) {
  rgaps_subscriber_t *subscriber = rgaps_subscriber_init(topic_name);
  if (subscriber == NULL) {
    fprintf(stderr, "paper: %s\n", rgaps_error_text());
    return 1;
  }
  puts("ready");
  fflush(stdout);
  for (int i = 0; i < count; ++i) {
    void *device_pointer = NULL;
    for (int pull = 0; device_pointer == NULL && pull < PULLS_MAX; ++pull) device_pointer = rgaps_subscriber_pull(subscriber);
    if (device_pointer == NULL) {
      fprintf(stderr, "paper: %s\n", rgaps_error_text());
      return 1;
    }
    const unsigned char *bytes = device_pointer;
    if (bytes[0] != (unsigned char)i || bytes[MESSAGE_BYTES - 1] != (unsigned char)i) {
      fprintf(stderr, "paper: message %d begins with %d and ends with %d\n", i, bytes[0], bytes[MESSAGE_BYTES - 1]);
      return 1;
    }
  }
  printf("pulled %d messages of %d B\n", count, MESSAGE_BYTES);
  rgaps_subscriber_destroy(subscriber);
  return 0;
}

int main(int argc, char **argv) {
  if (argc == 4 && strcmp(argv[1], "publish") == 0) return publish(argv[2], atoi(argv[3]));
  if (argc == 4 && strcmp(argv[1], "subscribe") == 0) return subscribe(argv[2], atoi(argv[3]));
  fputs("usage: paper publish|subscribe TOPIC COUNT\n", stderr);
  return 2;
}
