/* A plugin is unloaded while its node runs: the node's thread must not return into unmapped code. */

#include <dlfcn.h>
#include <poll.h>

#include "check.h"

#define LOOK_UP(name) __typeof__(&name) name##_ = (__typeof__(&name))(uintptr_t)dlsym(library, #name)

/* Like CHECK, without calls of the library, to which this program is not linked. */
#define HOLDS(condition)                                                              \
  do {                                                                                \
    if (!(condition)) {                                                               \
      fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition);  \
      return 1;                                                                       \
    }                                                                                 \
  } while (0)

int main(int count, char **arguments) {
  void *library = dlopen(count > 1 ? arguments[1] : "librgaps.so.2", RTLD_NOW | RTLD_LOCAL);
  rgaps_node_t *node = NULL;
  rgaps_subscriber_t *subscriber = NULL;
  if (library == NULL) fprintf(stderr, "%s\n", dlerror());
  HOLDS(library != NULL);
  LOOK_UP(rgaps_node_create_abi);
  LOOK_UP(rgaps_node_destroy);
  LOOK_UP(rgaps_subscriber_create);
  LOOK_UP(rgaps_subscriber_destroy);
  HOLDS(rgaps_node_create_abi_(RGAPS_ABI_VERSION, NULL, &node) == RGAPS_OK);
  HOLDS(rgaps_subscriber_create_(node, "/ctest/unload", RGAPS_KIND_BYTES, NULL, &subscriber) == RGAPS_OK);
  HOLDS(dlclose(library) == 0);
  /* The node's thread wakes up twice a second, and its code must still be mapped. */
  poll(NULL, 0, 1200);
  rgaps_subscriber_destroy_(subscriber);
  rgaps_node_destroy_(node);
  return 0;
}
