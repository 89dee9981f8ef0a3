// Cyclone DDS over UDP: reliable, keep-all. The subscriber's listener runs in a thread of Cyclone DDS.

#include "dds/dds.h"
#include "dds/version.h"

#include "message.h"
#include "protocol.h"

#define SAMPLES_MAX 16

#define CONFIGURATION_BYTES 512
// As installed, but for the interface, and for discovery without multicast, which loopback does not have.
static const char CONFIGURATION[] =
    "<General><Interfaces><NetworkInterface address=\"%s\"/></Interfaces><AllowMulticast>false</AllowMulticast></General>"
    "<Discovery><ParticipantIndex>auto</ParticipantIndex><Peers><Peer address=\"%s\"/></Peers></Discovery>";

struct writer {
    dds_entity_t entity;
    Message message;
};

static dds_entity_t checked(dds_entity_t result) {
    if (result < 0) fail(dds_strretcode(-result));
    return result;
}

static void publish(void *context) {
    struct writer *writer = context;
    checked(dds_write(writer->entity, &writer->message));
}

static void on_data(dds_entity_t reader, void *context) {
    const struct arguments *arguments = context;
    void *samples[SAMPLES_MAX] = {NULL};
    dds_sample_info_t infos[SAMPLES_MAX];
    dds_return_t count;
    while ((count = dds_take(reader, samples, infos, SAMPLES_MAX, SAMPLES_MAX)) > 0) {
        for (dds_return_t at = 0; at < count; ++at) {
            const Message *message = samples[at];
            if (infos[at].valid_data) got(message->data._buffer, message->data._length, arguments->read);
        }
        dds_return_loan(reader, samples, count);
        samples[0] = NULL;
    }
    checked(count);
}

int main(int argc, char **argv) {
    struct arguments arguments = parse(argc, argv, "Cyclone-DDS", DDS_VERSION);
    char configuration[CONFIGURATION_BYTES];
    snprintf(configuration, sizeof configuration, CONFIGURATION, arguments.own, arguments.other);
    checked(dds_create_domain(arguments.domain, configuration));
    dds_entity_t participant = checked(dds_create_participant(arguments.domain, NULL, NULL));
    dds_qos_t *qos = dds_create_qos();
    dds_qset_reliability(qos, DDS_RELIABILITY_RELIABLE, DDS_SECS(60));
    dds_qset_history(qos, DDS_HISTORY_KEEP_ALL, DDS_LENGTH_UNLIMITED);
    dds_entity_t topic = checked(dds_create_topic(participant, &Message_desc, "rgaps_bench", qos, NULL));
    if (arguments.is_publisher) {
        struct writer writer = {.entity = checked(dds_create_writer(participant, topic, qos, NULL))};
        uint8_t *bytes = malloc(arguments.bytes);
        if (bytes == NULL) fail("no memory");
        writer.message.data._buffer = bytes;
        writer.message.data._length = writer.message.data._maximum = (uint32_t)arguments.bytes;
        serve(bytes, arguments.bytes, publish, &writer);
        free(bytes);
    } else {
        dds_listener_t *listener = dds_create_listener(&arguments);
        dds_lset_data_available(listener, on_data);
        checked(dds_create_reader(participant, topic, qos, listener));
        say_ready();
        wait_for_the_end();
    }
    dds_delete(participant);
    return 0;
}
