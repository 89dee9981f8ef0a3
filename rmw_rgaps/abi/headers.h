/* The C declarations of rmw: those of the sourced ROS, or the stand-in. RGAPS_LEVEL says which distro's functions exist. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef RGAPS_STANDIN
#define RGAPS_LEVEL RGAPS_STANDIN
#include "standin.h"
#else
#include <rmw/event.h>
#include <rmw/events_statuses/message_lost.h>
#include <rmw/features.h>
#include <rmw/get_network_flow_endpoints.h>
#include <rmw/get_node_info_and_types.h>
#include <rmw/get_service_names_and_types.h>
#include <rmw/get_topic_endpoint_info.h>
#include <rmw/get_topic_names_and_types.h>
#include <rmw/names_and_types.h>
#include <rmw/rmw.h>
#if __has_include(<rmw/get_service_endpoint_info.h>)
#include <rmw/dynamic_message_type_support.h>
#include <rmw/get_service_endpoint_info.h>
#define RGAPS_LEVEL 3
#elif __has_include(<rmw/dynamic_message_type_support.h>)
#include <rmw/dynamic_message_type_support.h>
#define RGAPS_LEVEL 1
#else
#define RGAPS_LEVEL 0
#endif
#endif

/* FUNCTION of functions.def, where a distro that is not there yet leaves its functions out. */
#define FUNCTION(since, need, result, name, parameters) SINCE_##since(EACH_FUNCTION(need, result, name, parameters))
#define SINCE_humble(text) text
#if RGAPS_LEVEL >= 1
#define SINCE_jazzy(text) text
#else
#define SINCE_jazzy(text)
#endif
#if RGAPS_LEVEL >= 3
#define SINCE_lyrical(text) text
#else
#define SINCE_lyrical(text)
#endif

#ifdef RGAPS_STANDIN
#define EACH_FUNCTION(need, result, name, parameters) result name parameters;
#include "functions.def"
#undef EACH_FUNCTION
#endif
