/* A filter of point clouds: keeps the first point in each cube of a grid. Reads each cloud in place and writes the result into a loan, which
 * subscribers read in place.
 *
 *   cc voxel.c $(pkg-config --cflags --libs rgaps) -lm -o voxel
 *   voxel CUBE_METRES COUNT     takes COUNT clouds from "points", publishes them on "points/filtered"
 */

#include <rgaps.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WAIT_NS 10000000000u

/* A point, and the cube that contains it. */
struct place {
  int64_t cube[3];
  uint64_t point;
};

static void check(rgaps_status_t status, const char *what) {
  if (status != RGAPS_OK) {
    fprintf(stderr, "voxel: %s: %s\n", what, rgaps_error_text());
    exit(1);
  }
}

/* Orders by cube, and within a cube by the order of the points. */
static int compare(const void *a, const void *b) {
  const struct place *one = a, *other = b;
  for (int axis = 0; axis < 3; ++axis) {
    if (one->cube[axis] != other->cube[axis]) return one->cube[axis] < other->cube[axis] ? -1 : 1;
  }
  return one->point < other->point ? -1 : one->point > other->point;
}

static int by_point(const void *a, const void *b) {
  const struct place *one = a, *other = b;
  return one->point < other->point ? -1 : one->point > other->point;
}

static int is_same_cube(const struct place *one, const struct place *other) {
  return memcmp(one->cube, other->cube, sizeof one->cube) == 0;
}

/* The offsets of x, y and z in a point. */
static void offsets(const rgaps_meta_t *meta, uint32_t at[3]) {
  static const char *names[] = {"x", "y", "z"};
  for (int axis = 0; axis < 3; ++axis) {
    rgaps_point_field_t field;
    check(rgaps_meta_field(meta, names[axis], &field), "field");
    if (field.datatype != RGAPS_FLOAT32) {
      fprintf(stderr, "voxel: field %s is no float32\n", names[axis]);
      exit(1);
    }
    at[axis] = field.offset;
  }
}

/* The first point of each cube, in the cloud's order; returns how many. Points with NaN are dropped. */
static uint64_t filter(const rgaps_meta_t *meta, const uint8_t *payload, double cube, struct place *places) {
  const rgaps_point_cloud_t *cloud = &meta->as.point_cloud;
  uint32_t at[3];
  uint64_t found = 0, kept = 0;
  offsets(meta, at);
  for (uint64_t row = 0; row < cloud->height; ++row) {
    for (uint64_t column = 0; column < cloud->width; ++column) {
      struct place *place = &places[found];
      int is_somewhere = 1;
      place->point = row * cloud->row_step + column * cloud->point_step;
      for (int axis = 0; axis < 3; ++axis) {
        float metres;
        memcpy(&metres, payload + place->point + at[axis], sizeof metres);
        is_somewhere = is_somewhere && isfinite(metres) && fabs(metres / cube) < 1e15;
        place->cube[axis] = is_somewhere ? (int64_t)floor(metres / cube) : 0;
      }
      found += is_somewhere;
    }
  }
  qsort(places, found, sizeof *places, compare);
  for (uint64_t i = 0; i < found; ++i) {
    if (i == 0 || !is_same_cube(&places[i], &places[kept - 1])) places[kept++] = places[i];
  }
  qsort(places, kept, sizeof *places, by_point);
  return kept;
}

/* The metadata of the cloud with `points` points. The user bytes are cleared: the publisher wrote them for its own payload. */
static rgaps_meta_t with_points(const rgaps_meta_t *meta, uint32_t points) {
  rgaps_meta_t with = *meta;
  memset(with.as.header.user, 0, sizeof with.as.header.user);
  with.as.point_cloud.width = points;
  with.as.point_cloud.height = 1;
  with.as.point_cloud.row_step = points * meta->as.point_cloud.point_step;
  return with;
}

int main(int argc, char **argv) {
  const double cube = argc == 3 ? atof(argv[1]) : 0;
  if (!(cube > 0)) {
    fputs("usage: voxel CUBE_METRES COUNT\n", stderr);
    return 2;
  }
  rgaps_node_options_t options = rgaps_node_options_default();
  options.name = "voxel";
  rgaps_node_t *node;
  rgaps_subscriber_t *subscriber;
  rgaps_publisher_t *publisher;
  check(rgaps_node_create(&options, &node), "node");
  check(rgaps_publisher_create(node, "points/filtered", RGAPS_KIND_POINT_CLOUD, NULL, &publisher), "publisher");
  check(rgaps_subscriber_create(node, "points", RGAPS_KIND_POINT_CLOUD, NULL, &subscriber), "subscriber");
  puts("ready");
  fflush(stdout);
  for (int n = atoi(argv[2]); n > 0; --n) {
    rgaps_sample_t *message;
    rgaps_meta_t meta;
    const void *payload;
    check(rgaps_subscriber_wait(subscriber, WAIT_NS, &message), "wait");
    check(rgaps_sample_meta(message, &meta), "meta");
    check(rgaps_sample_data(message, &payload, NULL), "data");
    const uint64_t points = (uint64_t)meta.as.point_cloud.width * meta.as.point_cloud.height;
    struct place *places = malloc((points + 1) * sizeof *places);
    if (places == NULL) return 1;
    const uint64_t kept = filter(&meta, payload, cube, places);

    const rgaps_meta_t filtered = with_points(&meta, (uint32_t)kept);
    const uint32_t point_step = meta.as.point_cloud.point_step;
    rgaps_loan_t *loan;
    void *to;
    check(rgaps_publisher_loan(publisher, &filtered, &loan), "loan");
    check(rgaps_loan_data(loan, &to, NULL), "data");
    for (uint64_t i = 0; i < kept; ++i) {
      memcpy((uint8_t *)to + i * point_step, (const uint8_t *)payload + places[i].point, point_step);
    }
    check(rgaps_loan_publish(loan, NULL, NULL), "publish");
    check(rgaps_sample_release(message, NULL), "release");
    free(places);
    printf("%llu of %llu points\n", (unsigned long long)kept, (unsigned long long)points);
    fflush(stdout);
  }
  rgaps_subscriber_destroy(subscriber);
  rgaps_publisher_destroy(publisher);
  rgaps_node_destroy(node);
  return 0;
}
